"""How long amplint takes beside other linters, measured in one run: `python benchmarks/linters.py [CORPUS]`.

Without CORPUS a synthetic one is generated (`--files`). The other tools are installed into an environment of their own
under `--work`. Written: `docs/benchmarks.md` and `docs/benchmarks.svg`. Quote the ratios: seconds belong to a machine.

Tools that read every file through LibCST are run on a sample of the files (`--sample`) and scaled by lines, their
start-up aside; the table says so. Each measurement is the least of `--repeat` runs; CPU and peak memory are the
operating system's, children included.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("ruff", "pyflakes", "torchfix", "fixit", "torch-preflight")
GROWTH = (10, 100, 1_000, 10_000)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run: wall and CPU seconds, peak memory in MB. `scale` is by how much a sample was scaled up."""

    wall: float
    cpu: float
    memory: float
    scale: float = 1.0


ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""The environment of the tools: amplint runs from its sources here, and has its bytecode as one that pip installs."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A command without its paths; a slow one is run on a sample."""

    name: str
    command: tuple[str, ...]
    slow: bool = False


def measure(command: list[str], cwd: Path) -> Cost:
    """Run a command, its output thrown away, and see what it cost."""
    import time

    begun = time.monotonic()
    with open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen(command, cwd=cwd, stdout=nowhere, stderr=nowhere, env=ENVIRONMENT)
        _, _, usage = os.wait4(process.pid, 0)
    return Cost(time.monotonic() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def least(costs: list[Cost]) -> Cost:
    return min(costs, key=lambda cost: cost.cpu)


# -- the corpus ----------------------------------------------------------------------------------------------------


def generate(folder: Path, files: int) -> None:
    """A project of torch modules, training scripts and plain Python, in the proportions of real ones."""
    chance = random.Random(0)
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text("")
    for number in range(files):
        package = folder / f"package{number // 50}"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        kind = chance.choices((_plain, _module, _training), (55, 40, 5))[0]
        (package / f"file{number}.py").write_text(kind(number, chance))


def _plain(number: int, chance: random.Random) -> str:
    lines = ["import os", "import re", ""]
    for index in range(chance.randint(5, 40)):
        lines += [f"def helper_{number}_{index}(path, sizes=()):", f'    """Part {index}."""', "    total = 0"]
        lines += ["    for size in sizes:", "        total += size * 2", "    if os.path.exists(path):"]
        lines += ["        return re.sub('a', 'b', path), total", "    return path, total", ""]
    return "\n".join(lines)


def _module(number: int, chance: random.Random) -> str:
    lines = ["import torch", "import torch.nn.functional as F", "from torch import nn", ""]
    for index in range(chance.randint(2, 12)):
        lines += [f"class Block{number}_{index}(nn.Module):", "    def __init__(self, width, eps=1e-6):"]
        lines += [
            "        super().__init__()",
            "        self.inner = nn.Linear(width, width)",
            "        self.eps = eps",
        ]
        lines += ["        self.norm = nn.LayerNorm(width)", "", "    def forward(self, x):"]
        lines += ["        h = F.gelu(self.inner(self.norm(x)))", "        w = torch.softmax(h, dim=-1)"]
        lines += ["        return x + w / (w.sum(-1, keepdim=True) + self.eps)", ""]
    return "\n".join(lines)


def _training(number: int, chance: random.Random) -> str:
    clip = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    unscale = "scaler.unscale_(optimizer)" if chance.random() < 0.8 else "pass"
    return f"""\
import torch
from torch import nn


def train_{number}(model, loader, optimizer, criterion, epochs=3):
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(epochs):
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(x), y)
            if not torch.isfinite(loss):
                raise FloatingPointError(step)
            scaler.scale(loss).backward()
            {unscale}
            {clip}
            scaler.step(optimizer)
            scaler.update()
"""


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if path.is_file())


def lines_of(files: list[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in files)


# -- the runs ------------------------------------------------------------------------------------------------------


def install(work: Path) -> Path:
    """The folder of the other tools' programs."""
    programs = work / "tools" / "bin"
    if not programs.exists():
        venv.create(work / "tools", with_pip=True)
        subprocess.run([programs / "pip", "install", "--quiet", *PACKAGES], check=True)
    return programs


def tools(programs: Path) -> list[Tool]:
    found = [
        Tool("ruff (E9,F63)", (f"{programs}/ruff", "check", "--isolated", "--no-cache", "--select", "E9,F63")),
        Tool("pyflakes", (f"{programs}/pyflakes",)),
        Tool("fixit", (f"{programs}/fixit", "lint"), slow=True),
        Tool("torch-preflight", (f"{programs}/torch-preflight", "check"), slow=True),
        Tool("TorchFix", (f"{programs}/torchfix",), slow=True),
    ]
    return [tool for tool in found if Path(tool.command[0]).exists()]


def amplint(corpus: Path, repeat: int) -> dict[str, Cost]:
    """Cold (no cache), warm, and with one file changed since."""
    command = [sys.executable, "-m", "amplint", "check", "--isolated", "--exit-zero", "-q"]
    one = [*command, "--jobs", "1"]
    with tempfile.TemporaryDirectory() as cache:
        cached = [*command, "--cache-dir", cache]
        cold = least([measure([*one, "--no-cache", "."], corpus) for _ in range(repeat)])
        together = measure([*command, "--no-cache", "."], corpus)
        measure([*cached, "."], corpus)
        warm = least([measure([*cached, "."], corpus) for _ in range(repeat)])
        changed = measure_changed([*cached, "."], corpus)
    return {
        "amplint, cold, one process": cold,
        "amplint, cold": together,
        "amplint, warm": warm,
        "amplint, one file changed": changed,
    }


def measure_changed(command: list[str], corpus: Path) -> Cost:
    path = python_files(corpus)[-1]
    before = path.read_bytes()
    try:
        path.write_bytes(before + b"\n# changed\n")
        return measure(command, corpus)
    finally:
        path.write_bytes(before)


def others(corpus: Path, programs: Path, sample: int, repeat: int) -> dict[str, Cost]:
    files = python_files(corpus)
    total = lines_of(files)
    few = random.Random(1).sample(files, min(sample, len(files)))
    scale = total / max(lines_of(few), 1)
    found = {}
    for tool in tools(programs):
        paths = [str(path) for path in few] if tool.slow else ["."]
        cost = least([measure([*tool.command, *paths], corpus) for _ in range(1 if tool.slow else repeat)])
        if tool.slow:
            start = measure([*tool.command, paths[0]], corpus)
            cost = Cost(
                start.wall + max(cost.wall - start.wall, 0) * scale,
                start.cpu + max(cost.cpu - start.cpu, 0) * scale,
                cost.memory,
                scale,
            )
        found[tool.name] = cost
    return found


def growth(work: Path, largest: int) -> list[tuple[int, int, Cost]]:
    """(files, lines, cost) of amplint, cold, on synthetic corpora of growing size."""
    rows = []
    for files in (size for size in GROWTH if size <= largest):
        folder = work / f"synthetic{files}"
        if not folder.exists():
            generate(folder, files)
        command = [
            sys.executable,
            "-m",
            "amplint",
            "check",
            "--isolated",
            "--exit-zero",
            "-q",
            "--no-cache",
            "-j1",
            ".",
        ]
        rows.append((files, lines_of(python_files(folder)), measure(command, folder)))
    return rows


# -- the report ----------------------------------------------------------------------------------------------------


def report(corpus: str, files: int, lines: int, costs: dict[str, Cost], rows: list[tuple[int, int, Cost]]) -> str:
    """The Markdown page."""
    base = costs["amplint, cold, one process"].cpu
    out = [
        "# Benchmarks",
        "",
        f"Written by `python benchmarks/linters.py`. {corpus}: {files:,} files, {lines:,} lines.",
        "Ratios are of CPU time, to amplint cold in one process; seconds belong to the machine they were measured on.",
        "",
        "| | CPU, ratio | CPU s | wall s | peak MB |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, cost in sorted(costs.items(), key=lambda item: item[1].cpu):
        note = f" (a sample, scaled {cost.scale:.0f} times)" if cost.scale > 1 else ""
        out.append(f"| {name}{note} | {cost.cpu / base:.2f} | {cost.cpu:.2f} | {cost.wall:.2f} | {cost.memory:.0f} |")
    out += ["", "![CPU time, logarithmic](benchmarks.svg)", "", "## As the corpus grows", ""]
    out += ["Synthetic projects, cold, one process.", "", "| files | lines | CPU s | ms per file | peak MB |"]
    out.append("|---:|---:|---:|---:|---:|")
    for count, size, cost in rows:
        out.append(f"| {count:,} | {size:,} | {cost.cpu:.2f} | {1000 * cost.cpu / count:.1f} | {cost.memory:.0f} |")
    return "\n".join(out) + "\n"


def chart(costs: dict[str, Cost]) -> str:
    """A bar for each tool, its CPU time on a logarithmic scale, as SVG."""
    from math import log10

    rows = sorted(costs.items(), key=lambda item: item[1].cpu)
    lowest = min(cost.cpu for _, cost in rows) / 2
    unit = 420 / log10(rows[-1][1].cpu / lowest)
    bars = []
    for number, (name, cost) in enumerate(rows):
        width, top = unit * log10(cost.cpu / lowest), 10 + 28 * number
        colour = "#c2410c" if name.startswith("amplint") else "#64748b"
        bars.append(f'<text x="190" y="{top + 15}" text-anchor="end">{name}</text>')
        bars.append(f'<rect x="200" y="{top}" width="{width:.0f}" height="20" rx="3" fill="{colour}"/>')
        bars.append(f'<text x="{206 + width:.0f}" y="{top + 15}">{cost.cpu:.2f} s</text>')
    height = 20 + 28 * len(rows)
    style = 'font-family="sans-serif" font-size="13"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{height}" {style}>\n'
        + "\n".join(bars)
        + "\n</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", type=Path)
    parser.add_argument("--name", help="what the report calls the corpus")
    parser.add_argument("--files", type=int, default=1_000, help="size of the synthetic corpus [1000]")
    parser.add_argument("--largest", type=int, default=1_000, help="the largest corpus of the growth table [1000]")
    parser.add_argument("--sample", type=int, default=30, help="files that slow tools are run on [30]")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--work", type=Path, default=ROOT / "benchmarks" / ".work")
    arguments = parser.parse_args()
    corpus = arguments.corpus or arguments.work / f"synthetic{arguments.files}"
    if not corpus.exists():
        generate(corpus, arguments.files)
    programs = install(arguments.work)
    files = python_files(corpus)
    costs = {**amplint(corpus, arguments.repeat), **others(corpus, programs, arguments.sample, arguments.repeat)}
    rows = growth(arguments.work, arguments.largest)
    name = arguments.name or (corpus.name if arguments.corpus else "A synthetic project")
    (ROOT / "docs" / "benchmarks.md").write_text(report(name, len(files), lines_of(files), costs, rows))
    (ROOT / "docs" / "benchmarks.svg").write_text(chart(costs))
    sys.stdout.write((ROOT / "docs" / "benchmarks.md").read_text())


if __name__ == "__main__":
    main()
