"""MkDocs' hooks for the site of ./dev docs.

README.md and the other pages at the top of the repository, the table of heed_problem's fields and Doxygen's pages of the headers
(build/docs/api) are files of the site. A link from a page to another file of the repository leads to a copy of that file; a link to
what does not exist is left as it is, and MkDocs refuses it.
"""
import pathlib
import posixpath
import re
import sys

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import problem_fields

TOP_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def place_of(uri):
    """The path in the repository of a page of the site."""
    return next((source for source, page in TOP_PAGES.items() if page == uri), f"docs/{uri}")


def target_of(path):
    """The path in the site of a file of the repository; None where there is no such file."""
    if path in TOP_PAGES:
        return TOP_PAGES[path]
    if path.startswith("docs/") and not path.endswith(".py"):
        return path.removeprefix("docs/")
    if not (ROOT / path).is_file():
        return None
    return f"files/{path}.txt" if path.endswith((".md", ".html")) else f"files/{path}"


def links_of(uri, markdown):
    for link in LINK.finditer(markdown):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(place_of(uri)), link[1]))
        yield link, path, target_of(path)


def on_files(files, config):
    for source, page in TOP_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "reference/fields.md", content=problem_fields.page()))
    api = ROOT / "build/docs/api"
    for file in sorted(api.rglob("*")):
        if file.is_file():
            files.append(File.generated(config, f"api/{file.relative_to(api)}", abs_src_path=str(file)))
    for page in list(files.documentation_pages()):
        for _, path, target in links_of(page.src_uri, page.content_string):
            if target and target.startswith("files/") and files.get_file_from_path(target) is None:
                files.append(File.generated(config, target, content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown, page, config, files):
    here = page.file.src_uri
    replacements = {link[0]: f"]({posixpath.relpath(target, posixpath.dirname(here) or '.')}{link[2] or ''})"
                    for link, _, target in links_of(here, markdown) if target}
    for old, new in replacements.items():
        markdown = markdown.replace(old, new)
    return markdown
