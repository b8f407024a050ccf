"""Where a run happened: versions, the state of the source, threads, processor."""

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PACKAGES = ("bayesmooth", "torch", "numpy", "safetensors", "scikit-learn", "pandas")


def environment(device: torch.device) -> dict[str, object]:
    """What another person needs to know to get the same bits."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "torch_build": torch.__config__.show().strip().splitlines(),
        "git": _git_commit(),
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "command": sys.argv,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """The commit of the source tree, with `+` where it was changed; None for an installed package."""
    source = Path(__file__).resolve().parents[1]
    if "site-packages" in source.parts:
        return None  # a repository around it would be another project's
    ask = [
        "git",
        "-C",
        str(source),
        "describe",
        "--always",
        "--abbrev=40",
        "--exclude=*",
        "--dirty=+",
    ]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _device_name(device: torch.device) -> str:
    return (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or "cpu"
    )
