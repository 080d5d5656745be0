"""Orc: rows of ORC files, by their stripes. Owns which files pyarrow reads as Spark does.

Spark's own reader, in the driver's JVM, tells the contents of a file. pyarrow tells neither the types as they were
written nor where stripes begin, on which their partition in Spark depends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
from pyspark.sql.types import ArrayType, DataType, StructType

from orca.sources.parquet import Reader, RowGroup, batch_rows, replaced
from orca.sources.sparkplan import need

# Dates and times depend on calendars and on the writer's time zone.
_WORDS = {"boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary"}
_CODECS = {"NONE", "ZLIB", "SNAPPY", "LZ4", "ZSTD"}
_STRIPE = r"offset: (\d+) data: \d+ rows: (\d+) tail: \d+ index: \d+(?: [^,]*)?"
_POSITIONAL = "orc.force.positional.evolution"


class Stripes:
    """The stripes of files, checked to hold the needed columns in the types that Spark reads.

    Args:
        session: Its JVM reads the files' footers.
        columns: The columns, and Spark's types of them.
    """

    most = 1_000  # files: each takes the JVM some milliseconds

    def __init__(self, session: Any, columns: dict[str, DataType]) -> None:
        for name, kind in columns.items():
            need("." not in name, f"a column called {name}, which pyarrow takes for a field of another")
            _check_type(kind)
        self._java, self._columns = session._jvm, columns
        self._conf = session._jsc.hadoopConfiguration()
        need(not self._conf.getBoolean(_POSITIONAL, False), f"{_POSITIONAL} is on")
        self._stripes_of: dict[str, list[tuple[int, RowGroup]]] = {}
        self._schemas: set[str] = set()

    def all(self, path: str) -> Iterator[RowGroup]:
        """Yield the stripes of a file that have rows."""
        return (stripe for _, stripe in self._stripes(path))

    def between(self, path: str, start: int, stop: int) -> Iterator[RowGroup]:
        """Yield the stripes that begin between two bytes of a file: so Spark deals them to its tasks."""
        return (stripe for offset, stripe in self._stripes(path) if start <= offset < stop)

    def _stripes(self, path: str) -> list[tuple[int, RowGroup]]:
        if path not in self._stripes_of:
            address = self._java.org.apache.hadoop.fs.Path(self._java.java.io.File(path).toURI())
            library = self._java.org.apache.orc.OrcFile
            file = library.createReader(address, library.readerOptions(self._conf))  # they remember the file
            try:
                self._check_schema(file.getSchema())
                codec = str(file.getCompressionKind().toString())
                need(codec in _CODECS, f"the codec {codec}")
                text = str(file.getStripes().toString())
            finally:
                file.close()
            matches = list(re.finditer(_STRIPE, text))
            need(text == f"[{', '.join(match[0] for match in matches)}]", text)
            stripes = [(int(match[1]), RowGroup(path, i, 0, int(match[2]))) for i, match in enumerate(matches)]
            self._stripes_of[path] = [(offset, stripe) for offset, stripe in stripes if stripe.rows]
        return self._stripes_of[path]

    def _check_schema(self, schema: Any) -> None:
        """Check that a file has the columns, in the very types of the DataFrame."""
        whole = str(schema.toString())
        if whole in self._schemas:
            return
        names = [str(name) for name in schema.getFieldNames()]
        lowercase = [name.casefold() for name in names]
        need(not all(name.startswith("_col") for name in names), "columns that only Hive knows the names of")
        for name, kind in self._columns.items():
            need(lowercase.count(name.casefold()) == 1 and name in names, f"the files differ in {name}")
            word = str(schema.getChildren()[names.index(name)].toString())
            need(word == kind.simpleString(), f"{name} is {word} in a file")
        self._schemas.add(whole)


def read_stripes(reader: Reader, path: str, groups: list[RowGroup], multiple: int) -> Iterator[pa.RecordBatch]:
    """Yield the columns that a reader asks for of an ORC file; one stripe is in memory at a time."""
    with pa.OSFile(path) as source:
        file = orc.ORCFile(source)
        reader.check(path, file.schema, [], [])
        for group in groups:
            if group.number >= file.nstripes:
                raise replaced(path)
            stripe = file.read_stripe(group.number, reader.schema.names)
            reader.check(path, file.schema, [stripe.num_rows], [replace(group, number=0)])
            size = batch_rows([(stripe.nbytes, stripe.num_rows)], multiple)
            for start in range(group.start, group.stop, size):
                yield stripe.slice(start, min(size, group.stop - start))


def _check_type(kind: DataType) -> None:
    if isinstance(kind, ArrayType):
        _check_type(kind.elementType)
    elif isinstance(kind, StructType):
        for field in kind.fields:
            _check_type(field.dataType)
    else:
        need(kind.simpleString() in _WORDS, f"the type {kind.simpleString()}")
