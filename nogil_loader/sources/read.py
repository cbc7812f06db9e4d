"""Path or address to bytes.

Guarantees
- ``read`` is a plain module-level function: threads share it without contention.
- What is returned is the whole content; an error names the path.
"""

from __future__ import annotations

import os


def read(path: str | bytes | os.PathLike[str]) -> bytes:
    """The whole content of the file at ``path``, or of the object at an address.

    A path of ``str`` or ``bytes``, absolute or relative to the current folder, or an address
    (``https://…``, ``s3://…``), read over a connection for this call alone: for many, see
    ``sources.store.Fetch``. Raises ``OSError`` (``FileNotFoundError``, ``IsADirectoryError``,
    ``PermissionError``, ``StoreError``) with the path in it.

    Safe from any number of threads. Blocking: give it threads of its own,
    ``.map(nl.read, key="path", to="bytes", threads=16)``.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "a.bin")
    ...     _ = file.write_bytes(b"abc")
    ...     read(file)
    b'abc'
    """
    if isinstance(path, str) and "://" in path:
        from nogil_loader.sources.store import fetch

        return fetch(path)
    # Unbuffered: one fstat, one allocation of the right size, one read.
    with open(path, "rb", buffering=0) as file:
        return file.readall()
