"""Read users' text files by the same rules in every command and data module.

- Only LF or CRLF ends a line: a single CR, a form feed, U+0085, U+2028 and the like are characters
  within it. The last line need not end.
- A file is UTF-8. Its byte-order mark is dropped. Other bytes and NULs raise errors with file and
  line, and so does the byte-order mark of UTF-16 or UTF-32.
- Files with the endings .gz, .bz2, .xz and .zst are compressed, in one or several members. A
  truncated or damaged file raises an error that names it; rows are never lost silently.
- A line of JSON Lines is an object, and blank lines are skipped. In a TSV, quotes are ordinary
  characters; a CSV follows Python's module `csv`. Every row has as many cells as the first.
- Columns of Parquet files that are read contain strings.

docs/data.md describes the same rules for users.
"""

from t5x_like.reading.compressed import (
    FileError,
    create,
    existing_file,
    is_compressed,
    open_bytes,
    uncompressed,
    with_endings,
)
from t5x_like.reading.lines import (
    Blocks,
    count_lines,
    decode,
    is_blank,
    line_at,
    lines,
    lines_of,
    numbered,
    text,
    without_mark,
)
from t5x_like.reading.rows import (
    TABLES,
    ParquetFile,
    csv_rows,
    field_text,
    json_lines,
    json_object,
    tsv_rows,
)

__all__ = [
    "TABLES",
    "Blocks",
    "FileError",
    "ParquetFile",
    "count_lines",
    "create",
    "csv_rows",
    "decode",
    "existing_file",
    "field_text",
    "is_blank",
    "is_compressed",
    "json_lines",
    "json_object",
    "line_at",
    "lines",
    "lines_of",
    "numbered",
    "open_bytes",
    "text",
    "tsv_rows",
    "uncompressed",
    "with_endings",
    "without_mark",
]
