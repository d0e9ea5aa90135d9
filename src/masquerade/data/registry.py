"""The datasets of the papers: where their files are, how they are read, what they must hold."""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class File:
    """A file to be fetched."""

    name: str
    known: str
    """Its published hash, as kind:digits; empty where none is published."""
    hosts: tuple[str, ...]
    """Addresses, the original one first unless it has gone."""


@dataclass(frozen=True)
class Named:
    """A dataset that has a name."""

    title: str
    format: str
    origin: str
    license: str
    citation: str
    files: tuple[File, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """What its reader is told."""
    samples: int | None = None
    """How many samples there must be, where the files always hold as many."""
    clients: int | None = None
    classes: int | None = None
    class_names: tuple[str, ...] = ()
    content: str = ""
    """SHA-256 of samples and labels, in their order, where it is known: files may be compressed
    anew, or have another format."""
    note: str = ""
    """What a reader of results on it has to know."""

    def how(self, name: str) -> str:
        """Say how to get it."""
        add = f"`masquerade data add {name} --from PATH`"
        return f"run `masquerade data fetch {name}`, or {add} if you have its files"


def _idx(hosts: tuple[str, ...], known: Mapping[str, str]) -> tuple[File, ...]:
    names = {f"{part}-ubyte.gz": digits for part, digits in known.items()}
    return tuple(
        File(name, f"md5:{digits}", tuple(f"{host}{name}" for host in hosts))
        for name, digits in names.items()
    )


_LETTERS = string.ascii_uppercase
_MERGED = (*string.digits, *_LETTERS, *"abdefghnqrt")
_FASHION = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"

# The hashes of MNIST, Fashion-MNIST, EMNIST and CIFAR are those that torchvision compares; the
# authors of CIFAR and Fashion-MNIST print the same on their pages. Contents are hashed by
# `fetch.content_of`, from copies whose samples, labels and order are the originals'
# (tests/real/test_real.py).
_MNIST_FILES = _idx(
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    {
        "train-images-idx3": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)
_FASHION_FILES = _idx(
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    {
        "train-images-idx3": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1": "bb300cfdad3c16e7a12a480ee83cd310",
    },
)
_EMNIST_FILE = File(
    "gzip.zip",
    "md5:58c8d27c78d21e728a6bc7b3cc06412e",
    ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
)


def _emnist(part: str, samples: int, class_names: tuple[str, ...]) -> Named:
    return Named(
        f"EMNIST, {part}",
        "idx",
        "https://www.nist.gov/itl/products-and-services/emnist-dataset",
        "public domain (NIST Special Database 19)",
        "Cohen, Afshar, Tapson and van Schaik, EMNIST: an extension of MNIST to handwritten "
        "letters, 2017",
        (_EMNIST_FILE,),
        {"choose": f"emnist-{part}-", "classes": len(class_names)},
        samples,
        classes=len(class_names),
        class_names=class_names,
    )


def _femnist(title: str, names: tuple[str, ...], file: str, known: str, **options: Any) -> Named:
    # LEAF publishes a program instead of files; the files that it leads to are published by
    # TensorFlow Federated, whose source has these hashes.
    host = f"https://storage.googleapis.com/tff-datasets-public/{file}"
    return Named(
        title,
        "leaf",
        "https://leaf.cmu.edu, made from NIST Special Database 19; as published by TensorFlow "
        "Federated, or by LEAF's own program",
        "public domain (NIST Special Database 19); LEAF BSD-2-Clause",
        "Caldas et al., LEAF: a benchmark for federated settings, 2018",
        (File(file, f"sha256:{known}", (host,)),),
        options={"classes": len(names), **options},
        classes=len(names),
        class_names=names,
    )


def _cifar(classes: int, known: str, content: str) -> Named:
    file = f"cifar-{classes}-python.tar.gz"
    return Named(
        f"CIFAR-{classes}",
        "cifar",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "as published by its authors for research",
        "Krizhevsky, Learning multiple layers of features from tiny images, 2009",
        (File(file, f"md5:{known}", (f"https://www.cs.toronto.edu/~kriz/{file}",)),),
        samples=60_000,
        classes=classes,
        content=content,
    )


def _har(title: str, note: str = "", **options: Any) -> Named:
    base = "human+activity+recognition+using+smartphones"
    return Named(
        title,
        "har",
        "https://archive.ics.uci.edu/dataset/240/" + base,
        "cite the paper; its archive forbids commercial use (the host's page says CC BY 4.0)",
        "Anguita et al., A public domain dataset for human activity recognition using "
        "smartphones, ESANN 2013",
        (
            File(
                f"{base}.zip",
                # UCI prints none; this is the one that several projects have recorded.
                "sha256:c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
                (f"https://archive.ics.uci.edu/static/public/240/{base}.zip",),
            ),
        ),
        options,
        10_299,
        30,
        6,
        note=note,
    )


EMBEDDED: dict[str, Named] = {
    "digits": Named(
        "digits of 8 x 8, which come with scikit-learn",
        "embedded",
        "https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits (its "
        "test part, as scikit-learn has it)",
        "CC BY 4.0",
        "Alpaydin and Kaynak, Optical recognition of handwritten digits, 1998",
        samples=1797,
        classes=10,
        class_names=tuple(string.digits),
    )
}
"""The datasets that need no files."""

NAMED: dict[str, Named] = {
    "mnist": Named(
        "MNIST",
        "idx",
        "http://yann.lecun.com/exdb/mnist/",
        "as published by its authors for research",
        "LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document "
        "recognition, 1998",
        _MNIST_FILES,
        {"classes": 10},
        samples=70_000,
        classes=10,
        content="b3fe36794a3a345d09632e9d79f122d61ca91a07e5a22f8536973655bacf2a78",
    ),
    "fashion_mnist": Named(
        "Fashion-MNIST",
        "idx",
        "https://github.com/zalandoresearch/fashion-mnist",
        "MIT",
        "Xiao, Rasul and Vollgraf, Fashion-MNIST: a novel image dataset, 2017",
        _FASHION_FILES,
        {"classes": 10},
        samples=70_000,
        classes=10,
        class_names=tuple(_FASHION.split(",")),
    ),
    "emnist_balanced": _emnist("balanced", 131_600, _MERGED),
    "emnist_byclass": _emnist(
        "byclass", 814_255, (*string.digits, *_LETTERS, *string.ascii_lowercase)
    ),
    "emnist_bymerge": _emnist("bymerge", 814_255, _MERGED),
    "emnist_letters": _emnist("letters", 145_600, tuple(_LETTERS)),
    "emnist_digits": _emnist("digits", 280_000, tuple(string.digits)),
    "femnist": _femnist(
        "FEMNIST, by writer",
        (*string.digits, *_LETTERS, *string.ascii_lowercase),
        "fed_emnist.tar.bz2",
        "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
    ),
    "femnist_digits": _femnist(
        "FEMNIST, digits only",
        tuple(string.digits),
        "fed_emnist_digitsonly.tar.bz2",
        "55333deb8546765427c385710ca5e7301e16f4ed8b60c1dc5ae224b42bd5b14b",
        digits=True,
    ),
    "cifar10": _cifar(
        10,
        "c58f30108f718f92721af3b95e74349a",
        "88cb2239d6faefc5313a1d8af7f0e1a122be82a5a0930f0bea3314cf9c3f44ca",
    ),
    "cifar100": _cifar(
        100,
        "eb9058c3a382ffc7106e4002c42a8d85",
        "a87ed3e2d1f58a9ca8e58bb3e93b39175722ba5afab1f4de561f5fce46894ed9",
    ),
    "cifar10c": Named(
        "CIFAR-10-C, fifteen corruptions of CIFAR-10's test images",
        "cifar10c",
        "https://zenodo.org/records/2535967",
        "CC BY 4.0",
        "Hendrycks and Dietterich, Benchmarking neural network robustness to common corruptions "
        "and perturbations, ICLR 2019",
        (
            File(
                "CIFAR-10-C.tar",
                # As listed by Zenodo.
                "md5:56bf5dcef84df0e2308c6dcbcbbd8499",
                ("https://zenodo.org/records/2535967/files/CIFAR-10-C.tar?download=1",),
            ),
        ),
        samples=750_000,
        classes=10,
    ),
    "har": _har("UCI HAR, 561 features, by subject"),
    "har_signals": _har(
        "UCI HAR, raw signals, by subject",
        "The raw signals of UCI HAR are a stand-in for the 561 features of the papers (`har`).",
        signals=True,
    ),
    "shakespeare": Named(
        "Shakespeare, next character, by speaking role",
        "gutenberg",
        "https://www.gutenberg.org/ebooks/100",
        "Project Gutenberg License (this edition: free non-commercial distribution)",
        "Caldas et al., LEAF: a benchmark for federated settings, 2018",
        (
            File(
                "1994-01-100.zip",
                # No hash is published; the counts below are LEAF's, and the text must give them.
                "",
                (
                    "https://www.gutenberg.org/files/100/old/1994-01-100.zip",
                    "https://www.gutenberg.org/files/100/old/old/1994-01-100.zip",
                ),
            ),
        ),
        samples=4_226_158,
        clients=1_129,
        classes=80,
    ),
}
"""The datasets that `masquerade data fetch` and `add` know by name."""


def note_of(name: str) -> str:
    """Return what a reader of results on a dataset has to know; often there is nothing."""
    return NAMED[name].note if name in NAMED else ""
