"""The golden file of messages: whole texts of errors and warnings, by the test that provokes them.

Tests match codes and the values that a message names. How it is worded stands in this file alone,
and one command writes it anew: `pytest --rewrite-messages`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parent / "golden" / "messages.txt"
HEAD = "What errors and warnings say, by test. `pytest --rewrite-messages` writes this file.\n"


def read() -> dict[str, str]:
    """The texts by test."""
    entries = FILE.read_text(encoding="utf-8").split("\n## ")[1:] if FILE.exists() else []
    return {key: text.strip("\n") for key, text in (entry.split("\n", 1) for entry in entries)}


def write(texts: dict[str, str], ran: set[str]) -> None:
    """Write the texts of the test files that ran; others keep theirs."""
    kept = {key: text for key, text in read().items() if key.split("::")[0] not in ran}
    entries = [f"\n## {key}\n{text}\n" for key, text in sorted({**kept, **texts}.items())]
    FILE.write_text(HEAD + "".join(entries), encoding="utf-8")


@dataclass
class Golden:
    """What one test hears, held against the golden file, or noted where that is written anew."""

    key: str
    hides: dict[str, str]
    """What is of this machine alone, and the words that stand for it."""
    noted: dict[str, str] | None
    count: int = 0

    def __call__(self, message: object) -> None:
        """Compare the whole text of a message; what is of this machine is left out."""
        self.count += 1
        key = self.key + f" ({self.count})" * (self.count > 1)
        text = str(message).strip()
        for there, word in self.hides.items():
            text = text.replace(there, word)
        text = re.sub(r"127\.0\.0\.1:\d+", "HOST", re.sub(r"\n+", "\n", text))
        if self.noted is None:
            assert text == read().get(key), f"{key}: pytest --rewrite-messages accepts this text"
        else:
            self.noted[key] = text
