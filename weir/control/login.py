"""The address and the token of the console: from options, the environment, or the file that `weir login` writes."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import click

from weir.control.console import Refused


def credentials_path() -> Path:
    return Path(click.get_app_dir("weir")) / "console.json"


def read_credentials() -> Mapping[str, str]:
    """`url` and `token` of the last login; empty without one. Raises Refused for a damaged file."""
    path = credentials_path()
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return {"url": str(stored["url"]), "token": str(stored["token"])}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"{path} is damaged; `weir login` writes it again") from error


def store_credentials(url: str, token: str) -> Path:
    """Writes the file, readable by its owner only from its first byte on."""
    path = credentials_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # an existing file would keep its rights
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump({"url": url, "token": token}, file)
    return path
