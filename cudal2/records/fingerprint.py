"""``Fingerprint``: what a number depends on besides the kernel; records with different ones are not comparable."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from cudal2.errors import RecordError
from cudal2.records.measurement import PROTOCOL_VERSION, SCHEMA_VERSION


@dataclass(frozen=True)
class Fingerprint:
    """The environment of a measurement; every field counts for equality.

    Attributes:
        gpu: Name as the driver gives it; a label, since names vary with driver and image.
        capability: Compute capability (major, minor).
        sm_count: Multiprocessors the process sees.
        memory_gib: Device memory, rounded to whole GiB.
        driver: Driver version.
        cuda: CUDA runtime version.
        cublaslt: cuBLASLt version, which is the reference's.
        nvrtc: Compiler version.
        generator_version: ``codegen.generator_version()`` of the kernels that were built.
        protocol: Version of the timing protocol.
        schema: Version of the record format.
    """

    gpu: str
    capability: tuple[int, int]
    sm_count: int
    memory_gib: int
    driver: str
    cuda: str
    cublaslt: str
    nvrtc: str
    generator_version: str
    protocol: int = PROTOCOL_VERSION
    schema: int = SCHEMA_VERSION

    @property
    def sha256(self) -> str:
        """Digest of the sorted JSON form."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "capability": list(self.capability)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Fingerprint:
        """The inverse of :meth:`to_dict`.

        Raises:
            RecordError: The schema is not one this version reads, or a field is missing or unknown.
        """
        if values.get("schema") != SCHEMA_VERSION:
            raise RecordError(
                f"record schema {values.get('schema')!r} is not {SCHEMA_VERSION}, the one this version reads: "
                "use the cudal2 that wrote it"
            )
        wrong = sorted(set(values) ^ {field.name for field in fields(cls)})
        if wrong:
            raise RecordError(f"fingerprint has wrong or missing fields {wrong}: made by another version?")
        texts = [values[field.name] for field in fields(cls) if field.type == "str"]
        counts = [values["sm_count"], values["memory_gib"], values["protocol"], *values["capability"]]
        if not all(isinstance(text, str) for text in texts) or not all(
            type(n) is int and 0 <= n < 2**31 for n in counts
        ):
            raise RecordError("fingerprint has a field of the wrong kind: the file is damaged")
        if len(values["capability"]) != 2 or not values["sm_count"] or not values["memory_gib"]:
            raise RecordError("fingerprint describes no GPU: the file is damaged")
        return cls(**{**values, "capability": tuple(values["capability"])})

    def joined(self, other: Fingerprint) -> Fingerprint:
        """One for the measurements of both: texts that differ are :func:`joined_texts`.

        Raises:
            RecordError: They are of devices or protocols whose times cannot stand side by side.
        """
        names = [field.name for field in fields(self) if field.type == "str"]
        texts: dict[str, Any] = {name: joined_texts(getattr(self, name), getattr(other, name)) for name in names}
        made = replace(self, **texts)
        if hard := made.differences(replace(other, **texts)):
            raise RecordError(f"measurements of several devices or protocols ({'; '.join(hard)}): keep them apart")
        return made

    def differences(self, other: Fingerprint) -> list[str]:
        """One ``field: mine != theirs`` line per field that differs."""
        mine, theirs = self.to_dict(), other.to_dict()
        return [f"{name}: {mine[name]} != {theirs[name]}" for name in mine if mine[name] != theirs[name]]


def joined_texts(mine: str, theirs: str) -> str:
    """Either if they are the same, else the parts of both, sorted, with ``+`` between them."""
    return mine if mine == theirs else "+".join(sorted({*mine.split("+"), *theirs.split("+")}))
