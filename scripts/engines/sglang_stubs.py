"""Stand-ins for packages that SGLang imports but doesn't use for text on a CPU.

SGLang imports GPU kernels and media libraries at module level. setup_sglang.sh
puts this file into the engine's environment with a .pth line that imports it, and
from then on "import flashinfer" gives an empty package on which any attribute can be
read, called, subclassed or used as a decorator.

Code that only asks whether such a package is installed (importlib.util.find_spec)
is told no, as it should be.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

NAMES = {"sgl_kernel", "torchvision"}


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


class _ClassWithAnyAttribute(type):
    def __getattr__(cls, name: str) -> Any:
        if _is_dunder(name):
            raise AttributeError(name)
        return StubModule(f"{cls.__name__}.{name}")


class _TakesAnything(metaclass=_ClassWithAnyAttribute):
    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass


class StubModule(types.ModuleType):
    """A package whose capitalised attributes are classes and the others callable stubs."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        self.__version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if _is_dunder(name):
            raise AttributeError(name)
        value: Any
        if name[0].isupper():
            value = _ClassWithAnyAttribute(name, (_TakesAnything,), {})
        else:
            value = StubModule(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Behave as a decorator, with or without arguments."""
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            return function

        return decorate


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stubs, last in line, so that an installed package wins."""

    def find_spec(
        self,
        fullname: str,
        _path: Sequence[str] | None,
        _target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in NAMES or self._only_asking():
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    @staticmethod
    def _only_asking() -> bool:
        """Whether the caller is importlib.util.find_spec instead of an import."""
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        return frame is not None and frame.f_code is importlib.util.find_spec.__code__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> StubModule:
        return StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.append(StubFinder())
