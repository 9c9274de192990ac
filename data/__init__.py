"""Corpora and benchmarks (README.md), filters of text, and generators of rows."""

import sys

# Commands by the folder that they are in now.
_MOVED = {
    "filters": (
        *("books", "clean_pages", "clean_pages_beam", "contamination", "decontaminate"),
        *("deduplicate", "dialog_filter", "quality_filter", "wikipedia"),
    ),
    "generators": (
        *("augment", "function_graph", "generated_homes", "instructions", "language_rows"),
        "persons_graph",
    ),
}

for _folder, _commands in _MOVED.items():
    for _command in _commands:
        if f"data.{_command}" in sys.orig_argv:
            sys.stderr.write(
                f"error: python -m data.{_command} is now python -m data.{_folder}.{_command}\n"
            )
            sys.exit(2)
