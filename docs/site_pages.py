"""The pages of the site: MkDocs calls these hooks (mkdocs.yml).

Every page keeps its path in the repository, so that relative links need no change; notebooks become
Markdown with the outputs that they were saved with, and each module gets a page of its docstrings.
"""

import html
import pathlib
import re

import latex2mathml.converter
import nbformat
from markdown import Extension
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import CoalesceStreamsPreprocessor

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = ["README.md", "C*.md", "data/README.md", "launch/README.md", "docs/**/*.md"]
SHOWN = ["LICENSE", *(f"docs/**/*.{kind}" for kind in ("png", "json", "csv"))]
PACKAGE = "t5x_like"


class LiteralTags(Extension):
    """Show `<pad>` in a sentence as it is written: these pages have tokens and no HTML."""

    def extendMarkdown(self, md):  # noqa: N802
        """Remove the pattern that takes such words for HTML."""
        md.inlinePatterns.deregister("html")


def on_config(config):
    """Add the change of Markdown, which has no name to be listed by."""
    config.markdown_extensions.append(LiteralTags())


def notebook_files(path, config):
    """Yield a notebook as a page, and its figures."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\$\$(.+?)\$\$", r"\\[\1\\]", cell.source, flags=re.DOTALL)
            cell.source = re.sub(r"\$(.+?)\$", r"\\(\1\\)", cell.source, flags=re.DOTALL)
    exporter = MarkdownExporter()
    exporter.register_preprocessor(CoalesceStreamsPreprocessor, enabled=True)
    text, resources = exporter.from_notebook_node(notebook, {"unique_key": path.stem})
    yield File.generated(config, f"notebooks/{path.stem}.md", content=text)
    for name, figure in resources["outputs"].items():
        yield File.generated(config, f"notebooks/{name}", content=figure)


def module_file(path, config):
    """Return the page of a module: what its docstrings say, read without an import."""
    module = path.relative_to(ROOT).with_suffix("")
    name = ".".join(module.parts).removesuffix(".__init__")
    page = module.with_name("index") if module.name == "__init__" else module
    text = f"---\ntitle: {name.rpartition('.')[2]}\n---\n\n::: {name}\n"
    uri = f"reference/{page.relative_to(PACKAGE).as_posix()}.md"
    return File.generated(config, uri, content=text)


def on_files(files, config):
    """Return the files of the theme, and the pages of this repository at their paths there."""
    ours = {path for pattern in [*PAGES, *SHOWN] for path in ROOT.glob(pattern)}
    found = [file for file in files if file.src_dir != config.docs_dir]
    for path in sorted(ours):
        uri = path.relative_to(ROOT).as_posix()
        found.append(File.generated(config, uri, abs_src_path=str(path)))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        found.extend(notebook_files(path, config))
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        if path.name != "__main__.py":
            found.append(module_file(path, config))
    pages = [file.src_uri for file in found if file.is_documentation_page()]
    config.nav = expanded(config.nav, pages)
    return Files(found)


def expanded(item, pages):
    """Return an item of the navigation, with the pages of a folder where it names a folder."""
    if isinstance(item, dict):
        return {title: expanded(inner, pages) for title, inner in item.items()}
    if isinstance(item, list):
        lists = [expanded(entry, pages) for entry in item]
        return [page for entry in lists for page in (entry if isinstance(entry, list) else [entry])]
    return section(item, pages) if item.endswith("/") else item


def section(folder, pages):
    """Return the pages of a folder, its own page first, and a section for each folder in it."""
    within = sorted(page for page in pages if page.startswith(folder))
    own = [page for page in within if page[len(folder) :] in ("index.md", "README.md")]
    names = {page[len(folder) :].split("/")[0] for page in within if page not in own}
    items = [*own]
    for name in sorted(names):
        inner = f"{folder}{name}/"
        items.append(folder + name if name.endswith(".md") else {name: section(inner, pages)})
    return items


def on_page_markdown(markdown, page, config, files):
    """Return a page with its links to notebooks changed into links to the pages made of them."""
    return markdown.replace(".ipynb)", ".md)")


def on_page_content(content, page, config, files):
    """Return a page with its formulas as MathML, which browsers show without a script."""

    def formula(match):
        display = "block" if match[1] == "div" else "inline"
        return latex2mathml.converter.convert(html.unescape(match[2]), display=display)

    pattern = r'<(div|span) class="arithmatex">\\[\[(](.*?)\\[\])]</\1>'
    return re.sub(pattern, formula, content, flags=re.DOTALL)
