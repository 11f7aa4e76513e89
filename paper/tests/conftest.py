"""The fixtures of the library's tests."""

from tests.conftest import cache, forget_modules, here, own, registries

__all__ = ["cache", "forget_modules", "here", "own", "registries"]
