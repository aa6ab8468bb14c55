"""Fetch llama.cpp's vocabulary fixtures: fetch_vocabularies.py OUT_FOLDER

They come from the pinned source distribution of llama-cpp-python (MIT), downloaded straight from the package index that pip
is set to (pip itself would try to build the package to learn its metadata). Its SHA-256 is checked; only the fixtures are kept.
"""
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
PREFIX = "vendor/llama.cpp/models/"


def index_url():
    if os.environ.get("PIP_INDEX_URL"):
        return os.environ["PIP_INDEX_URL"]
    got = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True)
    if got.returncode == 0 and got.stdout.strip():
        return got.stdout.strip()
    from pip._internal.models.index import PyPI
    return PyPI.simple_url


def get(url, accept=None):
    request = urllib.request.Request(url, headers={"Accept": accept} if accept else {})
    return urllib.request.urlopen(request, timeout=60)


def find_file():
    page = index_url().rstrip("/") + f"/{PACKAGE}/"
    name = f"{PACKAGE.replace('-', '_')}-{VERSION}.tar.gz"
    with get(page, "application/vnd.pypi.simple.v1+json, text/html;q=0.5") as answer:
        text, kind = answer.read().decode(), answer.headers.get("Content-Type", "")
    if "json" in kind:
        links = [f["url"] for f in json.loads(text)["files"] if f["filename"] == name]
    else:
        links = [html.unescape(u) for u in re.findall(r'href="([^"]+)"', text) if f"/{name}" in u]
    if not links:
        sys.exit(f"{page} does not list {name}")
    return urllib.parse.urljoin(page, links[0].split("#")[0])


def main(out):
    done = os.path.join(out, "complete")
    if os.path.exists(done) and open(done).read() == SHA256:
        return
    os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(out))) as work:
        digest, archive = hashlib.sha256(), os.path.join(work, "sdist.tar.gz")
        with get(find_file()) as answer, open(archive, "wb") as file:
            while block := answer.read(1 << 20):
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != SHA256:
            sys.exit(f"sha256 of the source distribution is {digest.hexdigest()}, expected {SHA256}")
        kept = os.path.join(work, "kept")
        os.mkdir(kept)
        with tarfile.open(archive) as tar:
            for member in tar:
                inside = member.name.split("/", 1)[-1]
                name = inside[len(PREFIX):]
                if member.isfile() and inside.startswith(PREFIX) and re.fullmatch(r"(ggml-vocab|templates/)[\w./-]*", name):
                    target = os.path.join(kept, os.path.basename(name))
                    with tar.extractfile(member) as source, open(target, "wb") as file:
                        shutil.copyfileobj(source, file)
        open(os.path.join(kept, "complete"), "w").write(SHA256)
        shutil.rmtree(out, ignore_errors=True)
        os.rename(kept, out)


if __name__ == "__main__":
    main(sys.argv[1])
