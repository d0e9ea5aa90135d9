"""A client's own models after training, where they are: to predict, and to be exported."""

import math
from dataclasses import replace

from masquerade.config.resolve import outputs_for
from masquerade.core.preprocess import shape_after
from masquerade.core.random import Label, fold
from masquerade.deploy.measure import FinalFigures
from masquerade.deploy.participant import Participant
from masquerade.errors import MasqueradeError
from masquerade.evaluation.summary import name_of
from masquerade.experiments.data_facts import DataFacts
from masquerade.experiments.personal import Models, Personal
from masquerade.export import sparse
from masquerade.export.fits import check_fits
from masquerade.models import MODELS
from masquerade.results import (
    Baseline,
    Bytes,
    ClientFigures,
    Costs,
    Flops,
    ModelSize,
    PaperCosts,
    Participations,
    Spent,
    Summary,
)

NOT_KNOWN = Spent(
    Bytes(math.nan, math.nan),
    Flops(math.nan, math.nan, math.nan),
    PaperCosts(math.nan, math.nan),
)
"""What training cost all clients is known to the server alone."""


def personal_of(made: Participant, view: str = "") -> Personal:
    """Return the model of a client in a view, the default one, with what it knows of it."""
    spec = made.spec
    chosen = view or spec.views[0]
    if chosen not in spec.views:
        known = ", ".join(spec.views)
        raise MasqueradeError("E202", f"no view `{chosen}` was evaluated; there are {known}")
    parts = made.model(chosen)
    check_fits(parts, made.model_file(chosen).name, spec.method, made.own_task, chosen)
    summary = _summary(made, chosen)
    data = replace(made.data, names=())
    models = Models(
        method=spec.method,
        task=made.own_task,
        personal={chosen: [parts]},
        facts=DataFacts.of(data, made.own_task),
        federation=data,
        origin=_origin(made),
    )
    return Personal(models, parts, summary, 0)


def _origin(made: Participant) -> sparse.Origin | None:
    """Return where the weights began, if that was a seed."""
    train = made.spec.train
    if train.weights or train.model not in MODELS:
        return None
    shape = shape_after(made.own_task.preprocess, made.data.x.shape[1:])
    seed = fold(made.spec.seed, Label.INITIAL)
    return sparse.Origin(train.model, shape, outputs_for(made.data), seed)


def _summary(made: Participant, view: str) -> Summary:
    """Return what this client knows of a view: its own figures, and nobody else's."""
    spec, id, report = made.spec, made.seat.id, made.report(view)
    final = report.final
    assert final is not None
    name, title = spec.titles[spec.views.index(view)]
    figures = ClientFigures(
        ids=(id,),
        samples=(made.info.samples,),
        own=(report.own,),
        names=(made.seat.name,),
        tests=(report.tests,),
        one_class=(id,) if final.one_class else (),
    )
    parameters = made.task.parameters
    return Summary(
        method=name,
        title=title,
        view=view,
        data=made.agreement.name,
        seed=spec.seed,
        rounds=spec.train.rounds,
        clients=made.seat.clients,
        network=spec.train.model,
        metric=name_of(spec.task.metric),
        better=spec.task.better,
        split=spec.evaluate.split,
        accuracy=final.accuracy,
        metrics=final.metrics,
        majority=_majority(final, figures),
        costs=Costs(NOT_KNOWN, final.storage, math.nan),
        model=ModelSize(parameters, final.kept, final.kept / parameters),
        participation=Participations(math.nan, 0, 0),
        history=(),
        rounds_to_80=spec.train.rounds,
        per_client=figures,
    )


def _majority(final: FinalFigures, figures: ClientFigures) -> Baseline | None:
    found = final.majority
    if found is None:
        return None
    own = found.accuracy.own.mean
    per_client = replace(figures, own=(None if math.isnan(own) else own,), one_class=())
    return Baseline(found.accuracy, found.metrics, per_client)
