"""Pictures, sound and speech: refused by name. The runtime serves models of text."""

from __future__ import annotations

from typing import Any, NoReturn

from inferlet.refused import refuse

REASON = "the runtime serves models of text"


class Image:
    """Refused."""

    @classmethod
    def from_bytes(cls, *arguments: Any, **named: Any) -> NoReturn:
        """Refuse."""
        refuse("Image.from_bytes", REASON)


class Audio:
    """Refused."""

    @classmethod
    def from_bytes(cls, *arguments: Any, **named: Any) -> NoReturn:
        """Refuse."""
        refuse("Audio.from_bytes", REASON)


class Video:
    """Refused."""

    @classmethod
    def from_bytes(cls, *arguments: Any, **named: Any) -> NoReturn:
        """Refuse."""
        refuse("Video.from_bytes", REASON)


class SpeechBuilder:
    """Refused: ``Model.speak`` makes none."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        refuse("SpeechBuilder", REASON)


class Speech:
    """Refused: ``SpeechBuilder.generate`` makes none."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        refuse("Speech", REASON)


def write_wav(pcm: Any, rate: int) -> NoReturn:
    """Refuse."""
    refuse("write_wav", REASON)
