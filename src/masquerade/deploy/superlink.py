"""Flower's processes: their commands, what they find around them, and what they are told.

They call nobody but each other: telemetry, update checks and installs at run time are off.
"""

import asyncio
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import tomli_w

from masquerade.deploy.layout import ClientFolder, ServerFolder
from masquerade.errors import MasqueradeError
from masquerade.storage import atomic

CONNECTION = "masquerade"
SECONDS = 90.0
"""Within which a command of Flower answers."""
PYPROJECT = """\
[project]
name = "masquerade-app"
version = "1.0.0"
description = "Hands messages to the package masquerade, which is installed on every machine."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "local"

[tool.flwr.app.components]
serverapp = "masquerade_app.server:app"
clientapp = "masquerade_app.client:app"

[tool.flwr.app.config]
folder = ""
"""


def _app(name: str) -> str:
    """Return a module that has an app of ours; Flower looks for the name, and does not import."""
    return f"from masquerade.deploy.flower import {name}\n\napp = {name}\n"


APP = {
    "pyproject.toml": PYPROJECT,
    "masquerade_app/__init__.py": "",
    "masquerade_app/server.py": _app("server_app"),
    "masquerade_app/client.py": _app("client_app"),
}
"""What Flower ships to every node: names of what is installed there, no code."""
PASSED = (
    *("LANG", "LC_", "TZ", "TMPDIR", "PYTHON", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_"),
    *("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"),
    *("MASQUERADE_", "OMP_", "MKL_", "CUDA_"),
)
"""How the names of what else they find begin; whoever started them may have secrets there."""


def passed() -> dict[str, str]:
    """Return what of this process's environment others find as well, who are not to have all."""
    # Programs are started by their names.
    binaries = str(Path(sys.executable).parent)
    return {
        **{name: value for name, value in os.environ.items() if name.startswith(PASSED)},
        "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }


def environment(home: Path) -> dict[str, str]:
    """Return what Flower's processes find around them."""
    if importlib.util.find_spec("flwr") is None:
        text = "Flower is not installed; pip install 'masquerade[flower]'"
        raise MasqueradeError("E202", text)
    local = ",".join(filter(None, [os.environ.get("NO_PROXY", ""), "127.0.0.1,localhost"]))
    return {
        **passed(),
        "HOME": str(home),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
        "NO_PROXY": local,
        "no_proxy": local,
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
    }


def program(name: str, around: Mapping[str, str]) -> str:
    """Return where a program of Flower is."""
    found = shutil.which(name, path=around["PATH"])
    if found is None:
        text = f"{name} is not there; pip install 'masquerade[flower]'"
        raise MasqueradeError("E202", text)
    return found


def link_command(layout: ServerFolder, port: int, around: Mapping[str, str]) -> list[str]:
    """Return the command of a SuperLink on the loopback."""
    certificate, key = layout.certificate("loopback")
    return [
        program("flower-superlink", around),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)),
        *("--ssl-ca-certfile", str(layout.certificate("ca")[0])),
        *("--database", str(layout.database)),
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
    ]


def node_command(
    layout: ClientFolder, address: str, port: int, socket: Path, around: Mapping[str, str]
) -> list[str]:
    """Return the command of a client's SuperNode."""
    return [
        program("flower-supernode", around),
        *("--superlink", address, "--root-certificates", str(layout.authority)),
        *("--auth-supernode-private-key", str(layout.key)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--node-config", f"socket={json.dumps(str(socket))}"),
    ]


def write_home(layout: ServerFolder, port: int) -> None:
    """Write what Flower's commands read, and the app that it ships."""
    connection = {
        "address": f"127.0.0.1:{port}",
        "root-certificates": str(layout.certificate("ca")[0]),
    }
    text = tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: connection}})
    layout.flower_home.mkdir(parents=True, exist_ok=True)
    atomic.write_file(layout.flower_home / "config.toml", text.encode())
    for name, content in APP.items():
        path = layout.app / name
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_file(path, content.encode())


class Control:
    """Flower's command `flwr`, toward the SuperLink on the loopback."""

    def __init__(self, layout: ServerFolder, around: Mapping[str, str]) -> None:
        """Control the SuperLink of a folder."""
        self._layout, self._around = layout, around

    async def _call(self, *words: str) -> dict[str, object]:
        command = [program("flwr", self._around), *words, "--format", "json"]
        process = await asyncio.create_subprocess_exec(
            *command,
            env=dict(self._around),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(SECONDS):
                output, _ = await process.communicate()
        except TimeoutError:
            text = f"`flwr {' '.join(words[:2])}` failed: no answer within {SECONDS:.0f} s"
            raise MasqueradeError("E622", text) from None
        finally:
            if process.returncode is None:
                process.kill()
        text = output.decode(errors="replace")
        # Lines for people may come before.
        start = text.find("{")
        try:
            found = json.loads(text[start:])
        except ValueError:
            found = {"success": False, "error-message": text.strip()[-300:]}
        if not isinstance(found, dict) or found.get("success") is not True:
            said = found.get("error-message", "") if isinstance(found, dict) else text
            raise MasqueradeError("E622", f"`flwr {' '.join(words[:2])}` failed: {said}")
        return found

    async def nodes(self) -> list[Mapping[str, object]]:
        """Return what SuperLink knows of registered nodes."""
        found = await self._call("supernode", "list", CONNECTION, "--verbose")
        nodes = found.get("nodes")
        return [each for each in nodes if isinstance(each, dict)] if isinstance(nodes, list) else []

    async def register(self, key: Path) -> int:
        """Register a client's public key; return the number of its node."""
        found = await self._call("supernode", "register", str(key), CONNECTION)
        return int(str(found["node-id"]))

    async def unregister(self, node: int) -> None:
        """Revoke the key of a node."""
        await self._call("supernode", "unregister", str(node), CONNECTION)

    async def run(self) -> str:
        """Start our app; return the number of its run."""
        config = f"folder={json.dumps(str(self._layout.path))}"
        found = await self._call("run", str(self._layout.app), CONNECTION, "--run-config", config)
        return str(found["run-id"])

    async def stop(self, run: str) -> None:
        """End a run of our app."""
        await self._call("stop", run, CONNECTION)
