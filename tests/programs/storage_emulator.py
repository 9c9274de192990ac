"""An emulator of Cloud Storage with a bucket `bucket`, and one `sealed` that may not be written.

gcp-storage-emulator ignores the condition of a write on what is there (`ifGenerationMatch`), does
not name the generation that is read, and knows no permissions: these are added here, as Cloud
Storage documents them.
"""

import contextlib
import functools
import http.server
import io
import re
import threading
import urllib.parse

import fsspec
import fsspec.config
import pytest
from etils.epath import backend
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import buckets
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage

# Marks for tests: the libraries that read buckets leave sockets for the garbage collector.
QUIET = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
_ONE = threading.Lock()  # the emulator's storage is of one thread


class Handler(RequestHandler):
    """Refuses what Cloud Storage refuses, and leaves the rest to the emulator."""

    _found = "0"  # the generation of the object that is read

    def handle(self):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # of killed processes
            super().handle()

    def do_GET(self):  # noqa: N802 - named by the library, as are the others
        found = re.search(r"/b/([^/]+)/o/([^?]+)", self.path)
        with _ONE:
            if found:
                self._found = self._generation(found[1], urllib.parse.unquote(found[2]))
            super().do_GET()

    def end_headers(self):
        if self._found != "0":
            self.send_header("x-goog-generation", self._found)
        super().end_headers()

    def do_DELETE(self):  # noqa: N802
        with _ONE:
            super().do_DELETE()

    def do_POST(self):  # noqa: N802
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.rfile = io.BytesIO(body)
        address = urllib.parse.urlparse(self.path)
        query = urllib.parse.parse_qs(address.query)
        bucket = re.search(r"/b/([^/]+)/", address.path)
        with _ONE:
            if bucket and bucket[1] == "sealed":
                self._refuse(403, "the caller lacks storage.objects.create")
            elif "ifGenerationMatch" in query and query["ifGenerationMatch"] != [
                self._generation(bucket[1], _name(query, body))
            ]:
                self._refuse(412, "At least one of the pre-conditions you specified did not hold.")
            else:
                super().do_POST()

    def _generation(self, bucket, name):
        try:
            return self.storage.get_file_obj(bucket, name)["generation"]
        except NotFound:
            return "0"

    def _refuse(self, status, reason):
        content = f'{{"error": {{"code": {status}, "message": "{reason}"}}}}'.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def _name(query, body):
    """The object of an upload, which is in its address, or in the metadata that it begins with."""
    return (
        query["name"][0] if "name" in query else re.search(rb'"name": ?"([^"]+)"', body)[1].decode()
    )


@contextlib.contextmanager
def running():
    """The environment variables with which libraries use an emulator that runs in threads."""
    storage = Storage(use_memory_fs=True)
    for name in ("bucket", "sealed"):
        buckets.create_bucket(name, storage)
    with http.server.ThreadingHTTPServer(
        ("localhost", 0), functools.partial(Handler, storage)
    ) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = f"http://localhost:{server.server_address[1]}"
        yield {
            "STORAGE_EMULATOR_HOST": address,  # gcsfs and google-cloud-storage
            "TENSORSTORE_GCS_HTTP_URL": address,
            "FSSPEC_GCS_TOKEN": "anon",
            # Which kind of bucket it is can be asked of Cloud Storage only.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def used():
    """Let this process, and those that it starts, use an emulator."""
    with running() as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        # The variable is read once, when fsspec is imported, and clients are kept.
        patch.setitem(fsspec.config.conf, "gcs", {"token": "anon"})
        _forget_clients()
        yield
        _forget_clients()


def _forget_clients():
    backend.fsspec_backend._get_filesystem.cache_clear()
    fsspec.get_filesystem_class("gcs").clear_instance_cache()  # reads a variable on import
