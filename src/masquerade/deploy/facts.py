"""What clients say of their data before training, and what all of them agree on.

No sample is told: how many there are, what one looks like, and what columns, categories and classes
are called. The names of all clients are put together, and every client numbers its own by them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from masquerade.core.features import Feature
from masquerade.data import Federation
from masquerade.errors import MasqueradeError, listed

DTYPES = ("float32", "uint8", "int8", "int16", "int32", "int64")
"""What samples may be."""
LARGEST = 1 << 26
"""Numbers of a sample, at most."""
MOST = 1 << 40
"""Samples of a client, at most."""
CLASSES = 1 << 16
"""Classes of a client, at most: each has its place in the last layer of everybody's model."""


@dataclass(frozen=True)
class Form:
    """What samples and targets look like."""

    shape: tuple[int, ...]
    """Of a sample."""
    dtype: str
    targets: tuple[int, ...] = ()
    """The shape of a target."""
    classes: int | None = None
    """None where targets are numbers."""
    class_names: tuple[str, ...] = ()
    features: tuple[Feature, ...] = ()
    """The columns of a table."""
    impute: str = ""
    worded: bool = False
    """Whether labels were words, and not numbers."""

    @classmethod
    def of(cls, data: Federation) -> "Form":
        """Take it from a client's samples."""
        return cls(
            shape=tuple(data.x.shape[1:]),
            dtype=str(data.x.dtype).removeprefix("torch."),
            targets=tuple(data.y.shape[1:]),
            classes=data.classes,
            class_names=data.class_names,
            features=data.features,
            impute=data.impute,
            worded=data.worded,
        )

    @property
    def names_of_classes(self) -> tuple[str, ...]:
        """Return what classes are called, be it their numbers."""
        return self.class_names or tuple(map(str, range(self.classes or 0)))

    def blank(self, name: str, clients: Sequence[str]) -> Federation:
        """Return a federation that looks so, of clients without samples."""
        x = torch.zeros(1, *self.shape, dtype=getattr(torch, self.dtype))
        kind = torch.float32 if self.classes is None else torch.int64
        nothing = (torch.empty(0, dtype=torch.int64),) * len(clients)
        return self.named(
            Federation(
                name,
                x,
                torch.zeros(1, *self.targets, dtype=kind),
                self.classes,
                *(nothing, nothing, nothing),
                names=tuple(clients),
            )
        )

    def named(self, data: Federation) -> Federation:
        """Return a federation with these names of classes and columns."""
        return replace(
            data,
            classes=self.classes,
            class_names=self.class_names,
            features=self.features,
            impute=self.impute,
            worded=self.worded,
        )


@dataclass(frozen=True)
class Facts:
    """What a client says of its data and itself."""

    form: Form
    train: int
    validation: int
    test: int
    fingerprint: str
    """Of its samples and their split, salted with the run: it tells that they changed."""
    torch: str = ""
    masquerade: str = ""

    def check(self) -> None:
        """Refuse what no data can be: a client may say anything."""
        form, names = self.form, self.form.class_names
        sizes = (*form.shape, *form.targets)
        possible = (
            form.dtype in DTYPES
            and all(0 <= n <= MOST for n in (self.train, self.validation, self.test))
            and min(sizes, default=1) >= 1
            and math.prod(sizes) <= LARGEST
            and (form.classes is None or 1 <= form.classes <= CLASSES)
            and len(set(names)) == len(names)
            and (not names or len(names) == form.classes)
            and (not form.features or form.shape == (len(form.features),))
        )
        if not possible:
            raise MasqueradeError("E610", "facts of a client that no data can have")


def unlike(forms: Mapping[str, Form]) -> dict[str, MasqueradeError]:
    """Return why clients do not fit together with most of the others (E612), by their names.

    Of as many, those are right with whom `forms` begins.
    """
    looks: dict[object, list[str]] = {}
    for name, form in forms.items():
        looks.setdefault(tuple(_look(form).values()), []).append(name)
    most = max(looks.values(), key=len, default=[])
    wrong = {}
    for name in forms.keys() - set(most):
        try:
            check_alike(forms[most[0]], forms[name], most[0], name)
        except MasqueradeError as error:
            wrong[name] = error
    return wrong | _otherwise_labeled({name: forms[name] for name in most})


def _otherwise_labeled(forms: Mapping[str, Form]) -> dict[str, MasqueradeError]:
    """Return who has numbers for classes where most have words, and no class is the same.

    Clients may have different classes, but 0 and 1 are hardly others than "no" and "yes".
    """
    sides: dict[bool, list[str]] = {}
    for name, form in forms.items():
        sides.setdefault(form.worded, []).append(name)
    right, wrong = (*sorted(sides.values(), key=len, reverse=True), [], [])[:2]
    known, others = (
        {c for name in side for c in forms[name].names_of_classes} for side in (right, wrong)
    )
    if not known or not others or known & others:
        return {}
    mine = forms[right[0]].names_of_classes
    return {
        name: _differ("classes are", mine, forms[name].names_of_classes, right[0], name)
        for name in wrong
    }


def merged(forms: Iterable[Form]) -> Form:
    """Return the form that all of some clients can have, who fit together."""
    form, *_ = tables = list(forms)
    columns = zip(*(each.features for each in tables), strict=True)
    classes = None if form.classes is None else _union([each.names_of_classes for each in tables])
    numbered = classes is not None and classes == tuple(map(str, range(len(classes))))
    return replace(
        form,
        classes=None if classes is None else len(classes),
        class_names=() if classes is None or numbered else classes,
        worded=any(each.worded for each in tables),
        features=tuple(
            Feature(column[0].name, _union([each.categories for each in column]))
            for column in columns
        ),
    )


def check_alike(one: Form, other: Form, first: str, second: str) -> None:
    """Refuse samples that do not look alike; `first` and `second` are whose they are."""
    theirs = _look(other)
    for what, mine in _look(one).items():
        if mine != theirs[what]:
            raise _differ(what, mine, theirs[what], first, second)


def _look(form: Form) -> dict[str, object]:
    """Return what has to be the same for all, by the words that a refusal has for it."""
    return {
        # Of tables, which column is missing says more than how many there are.
        "columns are": _columns(form),
        "samples have the shape": form.shape,
        "samples are": form.dtype,
        "targets have the shape": form.targets,
        "targets are": "numbers" if form.classes is None else "classes",
        "missing values are imputed by": form.impute or "nothing",
    }


def _differ(what: str, mine: object, theirs: object, first: str, second: str) -> MasqueradeError:
    text = f"{what} {_told(mine)} at {first}, and {_told(theirs)} at {second}"
    return MasqueradeError("E612", f"{text}; read the data alike at both")


def check_known(form: Form, other: Form, second: str) -> None:
    """Refuse a client that comes later with classes or categories that nobody had before."""
    check_alike(form, other, "the federation", second)
    vocabularies = [("class", form.names_of_classes, other.names_of_classes)]
    vocabularies += [
        (f"category of `{mine.name}`", mine.categories, theirs.categories)
        for mine, theirs in zip(form.features, other.features, strict=True)
    ]
    for what, known, theirs in vocabularies:
        new = [each for each in theirs if each not in known]
        if new:
            text = f"{second} has a {what} that the federation does not know: {listed(new)}"
            raise MasqueradeError("E612", f"{text}; it has {listed(known)}; leave such samples out")


def translated(data: Federation, form: Form) -> Federation:
    """Return a client's samples with classes and categories numbered as all have agreed."""
    own = Form.of(data)
    check_known(form, own, "this client")
    x, y = data.x, data.y
    if form.classes is not None and own.names_of_classes != form.names_of_classes:
        y = _places(own.names_of_classes, form.names_of_classes)[y]
    for place, (mine, theirs) in enumerate(zip(own.features, form.features, strict=True)):
        if mine.categories != theirs.categories:
            x = x.clone()
            known = ~x[:, place].isnan()
            codes = _places(mine.categories, theirs.categories)
            x[known, place] = codes[x[known, place].long()].to(x.dtype)
    return form.named(replace(data, x=x, y=y))


def _places(mine: Sequence[str], all_of_them: Sequence[str]) -> Tensor:
    return torch.tensor([all_of_them.index(each) for each in mine], dtype=torch.int64)


def _union(vocabularies: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Put names together: in the order of whoever has all of them, else sorted."""
    everything = {each for known in vocabularies for each in known}
    for known in vocabularies:
        if len(known) == len(everything):
            return tuple(known)
    numbers = all(_is_number(each) for each in everything)
    return tuple(sorted(everything, key=(lambda each: (float(each), each)) if numbers else None))


def _is_number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False


def _columns(form: Form) -> tuple[str, ...]:
    return tuple(f"{each.name}{' (categories)' * each.is_category}" for each in form.features)


def _told(value: object) -> str:
    return listed(value, 30) or "none" if isinstance(value, tuple) else str(value)


def counts_of(data: Federation, id: int) -> tuple[int, int, int]:
    """Return how many samples a client trains, validates and tests on."""
    train, validation, test = (len(part[id]) for part in (data.train, data.validation, data.test))
    return train, validation, test
