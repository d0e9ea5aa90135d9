"""Results without the names that data give their clients, to be shown to anybody."""

from collections.abc import Sequence
from dataclasses import replace

from masquerade.results.summary import ClientFigures, Summary


def without_names(results: Sequence[Summary]) -> list[Summary]:
    """Return results in which clients have their numbers alone."""
    return [
        replace(
            each,
            per_client=_bare(each.per_client),
            novel=each.novel and replace(each.novel, clients=_listed(each.novel.clients)),
            majority=each.majority
            and replace(
                each.majority,
                per_client=_bare(each.majority.per_client),
                novel=each.majority.novel
                and replace(each.majority.novel, clients=_listed(each.majority.novel.clients)),
            ),
            rules={
                name: replace(rule, per_client=_bare(rule.per_client))
                for name, rule in each.rules.items()
            },
        )
        for each in results
    ]


def _bare(found: ClientFigures | None) -> ClientFigures | None:
    return found and _listed(found)


def _listed(found: ClientFigures) -> ClientFigures:
    return replace(found, names=())
