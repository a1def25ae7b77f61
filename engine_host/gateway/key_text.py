"""What a key looks like: `llmc-<id>-<secret>`. The id is public, the secret is stored nowhere."""

import hashlib
import re
import secrets
import string

ID_LENGTH = 8
SECRET_BYTES = 32
"""256 bits: guessing one is out of the question, so that a plain SHA-256 of it may be stored."""

_ALPHABET = string.ascii_lowercase + string.digits
_KEY = re.compile(r"llmc-([a-z0-9]{8})-([A-Za-z0-9_-]{43})")


def new_id() -> str:
    """A random id: 8 lower-case letters and digits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(ID_LENGTH))


def new_secret() -> str:
    """A random secret: 43 characters of URL-safe base64."""
    return secrets.token_urlsafe(SECRET_BYTES)


def key_text(key_id: str, secret: str) -> str:
    """The key as its holder sends it."""
    return f"llmc-{key_id}-{secret}"


def parse_key(text: str) -> tuple[str, str] | None:
    """Id and secret of a well-formed key, `None` of anything else."""
    match = _KEY.fullmatch(text)
    return (match[1], match[2]) if match else None


def digest(secret: str) -> bytes:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
