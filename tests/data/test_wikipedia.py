"""Wikipedia's dumps: which pages and passages stay, and commands that were interrupted."""

import bz2
import json

import pytest

from data.filters import wikipedia
from t5x_like import reading

HEADER = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="de">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <base>https://de.wikipedia.org/wiki/Wikipedia:Hauptseite</base>
    <namespaces>
      <namespace key="-2" case="first-letter">Medium</namespace>
      <namespace key="0" case="first-letter" />
      <namespace key="6" case="first-letter">Datei</namespace>
      <namespace key="12" case="first-letter">Hilfe</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
    </namespaces>
  </siteinfo>
"""
INVISIBLE = frozenset({"media", "file", "image", "category", "datei", "medium", "kategorie"})


def page(title, markup, *, namespace=0, redirect=False, revisions=1):
    text = markup.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f"  <page>\n    <title>{title}</title>\n    <ns>{namespace}</ns>\n    <id>1</id>\n"
        + ('    <redirect title="x" />\n' if redirect else "")
        + f'    <revision><id>2</id><text bytes="9" xml:space="preserve">{text}</text></revision>\n'
        * revisions
        + "  </page>\n"
    )


def dump(path, *pages_of):
    content = (HEADER + "".join(pages_of) + "</mediawiki>\n").encode()
    path.write_bytes(bz2.compress(content) if path.suffix == ".bz2" else content)
    return str(path)


# A piece of wikitext, and what a reader of the page sees of it as passages of text.
MARKUP = {
    "emphasis": ("'''One''' is ''the'' first.", "One is the first."),
    "links": ("A [[Town (x)|town]] in [[Shire]], [[Help:A|help]].", "A town in Shire, help."),
    "external": ("By [http://example.org monks] and dogs.", "By monks and dogs."),
    "addresses": ("See http://example.org/a?b now.", "See now."),
    "title with a colon": ("Read [[Re:Zero]] now.", "Read Re:Zero now."),
    "files": ("[[Datei:A.jpg|mini|The [[hall]].]]Text. [[Image:b.png]]", "Text."),
    "files in an old name": ("[[Bild:A.JPG|mini|Hall]]Text, [[:Bild:a.jpg|seen]].", "Text, seen."),
    "categories": ("Text.\n[[Kategorie:Towns]]\n[[fr:Texte]]", "Text."),
    "templates": ("One ({{lang|la|x}}; {{a|{{b}}}}) {{c\n|d=e\n}} two.", "One two."),
    "references": ('One.<ref name="a">Book {{p}}</ref><ref name="b" /> Two.', "One. Two."),
    "comments": ("One<!-- hidden\n* text --> two.", "One two."),
    "headings": ("One.\n== Two ==\nThree.\n=== '''Four''' ===", "One.\nThree."),
    "lists": ("One:\n* two\n** three\n# four\n; five : six\n: seven\nEight.", "One:\nEight."),
    "lists in html": ("One.\n<ul><li>two</li><li>three</li></ul>\nFour.", "One.\nFour."),
    "tables": ('One.\n{| class="a"\n! two\n|-\n| three || [[four]]\n|}\nFive.', "One.\nFive."),
    "formulas and code": ("A <math>x^2</math>, <code>f()</code> b.", "A, b."),
    "breaks and entities": ("A<br />b&nbsp;c &ndash; d", "A b c \u2013 d"),
    "switches": ("__NOTOC__\nOne.", "One."),
    "paragraphs": ("One.\n\n\nTwo.\nThree.", "One.\nTwo.\nThree."),
    "small and quotes": ("<small>A</small> <blockquote>b</blockquote>", "A b"),
    "nothing": ("{{stub}}\n* a", ""),
}


@pytest.mark.parametrize("name", MARKUP)
def test_passages_of_text_stay(name):
    markup, seen = MARKUP[name]
    assert wikipedia.passages(markup, INVISIBLE) == seen


def written(folder):
    return [row for path in sorted(folder.glob("*.gz")) for _, row in reading.json_lines(path)]


def test_articles_of_parts_become_documents(tmp_path):
    files = [
        dump(
            tmp_path / "dewiki-pages-articles1.xml-p1p4.bz2",
            page("Das Eine", "Eins & zwei.\n[[Datei:A.jpg]]"),
            page("Diskussion:Das Eine", "Nein.", namespace=1),
            page("Eines", "#WEITERLEITUNG [[Das Eine]]", redirect=True),
        ),
        dump(tmp_path / "dewiki-pages-articles2.xml", page("\u00c4", "Drei."), page("L", "* x")),
    ]
    counts = wikipedia.convert(files, tmp_path / "out", processes=2)
    assert counts == {
        wikipedia.READ: 5,
        wikipedia.OTHER: 1,
        wikipedia.REDIRECT: 1,
        wikipedia.NO_TEXT: 1,
        wikipedia.KEPT: 2,
    }
    first, second = written(tmp_path / "out")
    base = "https://de.wikipedia.org/wiki/"
    assert first == {"title": "Das Eine", "text": "Eins & zwei.", "url": f"{base}Das_Eine"}
    assert second == {"title": "\u00c4", "text": "Drei.", "url": f"{base}%C3%84"}
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    stem = "dewiki-pages-articles"
    assert names == [f"{stem}1-p1p4.jsonl.gz", f"{stem}2.jsonl.gz"]
    with pytest.raises(ValueError, match="exists already: give another --output"):
        wikipedia.convert(files, tmp_path / "out")


def test_an_interrupted_command_continues(tmp_path, monkeypatch):
    files = [dump(tmp_path / f"{n}.xml", page(f"T{n}", f"Text {n}.")) for n in range(3)]
    convert_file, done = wikipedia.convert_file, []

    def killed(output, path):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(path)
        convert_file(output, path)

    monkeypatch.setattr(wikipedia, "convert_file", killed)
    with pytest.raises(KeyboardInterrupt):
        wikipedia.convert(files, tmp_path / "out")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.gz")}
    assert len(before) == 2
    monkeypatch.setattr(wikipedia, "convert_file", convert_file)
    assert wikipedia.convert(files, tmp_path / "out")[wikipedia.KEPT] == 3
    assert [row["title"] for row in written(tmp_path / "out")] == ["T0", "T1", "T2"]
    assert all((tmp_path / "out" / name).stat().st_mtime_ns == at for name, at in before.items())
    assert not (tmp_path / "out" / "unfinished").exists()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (HEADER, "it is not whole XML"),
        ("<html></html>", "its root is <html>, not <mediawiki>"),
        (HEADER + page("A", "a", revisions=2) + "</mediawiki>", "the page 'A' has 2 revisions"),
        ("<mediawiki>" + page("A", "a") + "</mediawiki>", "no <siteinfo> before a page"),
        (HEADER + page("A", "a", namespace="x") + "</mediawiki>", "'A' has the namespace 'x'"),
    ],
)
def test_a_bad_file_ends_the_command_with_its_name(content, problem, tmp_path, capsys):
    path = tmp_path / "bad.xml"
    path.write_text(content)
    with pytest.raises(SystemExit):
        wikipedia.main([f"--input={path}", f"--output={tmp_path / 'out'}"])
    error = capsys.readouterr().err
    assert error.startswith(f"error: {path}: ")
    assert problem in error
    assert json.dumps(error).count("\\n") == 1


def test_files_without_articles_are_refused_and_leave_nothing(tmp_path):
    path = dump(tmp_path / "a.xml", page("A", "#REDIRECT [[B]]", redirect=True))
    with pytest.raises(ValueError, match="none of the 1 files of --input has an article"):
        wikipedia.convert([path], tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_unfinished_work_of_other_files_is_refused_before_work(tmp_path):
    """A damaged file that the next command leaves out, whose part would stay behind."""
    whole, damaged = dump(tmp_path / "a.xml", page("A", "One.")), tmp_path / "b.xml"
    damaged.write_text(HEADER + page("B", "Two."))
    with pytest.raises(reading.FileError, match="it is not whole XML"):
        wikipedia.convert([str(damaged), whole], tmp_path / "out")
    with pytest.raises(
        ValueError, match=r"b\.jsonl\.gz is not of these --input files: give the files"
    ):
        wikipedia.convert([whole], tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["unfinished"]
    (tmp_path / "out" / "unfinished" / "b.jsonl.gz").unlink()
    assert wikipedia.convert([whole], tmp_path / "out")[wikipedia.KEPT] == 1
