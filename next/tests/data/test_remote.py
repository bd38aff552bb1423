# SPDX-License-Identifier: Apache-2.0
"""URLs through fsspec: ranges, cache, retries, masked secrets. In process by default; `-m remote` against moto."""

import importlib
import io
import pickle
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest

from fewbit.data import remote
from fewbit.data.formats.npz import write_npz
from fewbit.data.opening import locate, open_source
from fewbit.data.remote import BLOCK, READ_AHEAD, RemoteFiles, mask_secrets
from fewbit.data.types import DataReport, SampleError
from fewbit.errors import DataError, MissingLibraryError, UsageError

fsspec = pytest.importorskip("fsspec")
MemoryFileSystem = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem


class CountingFileSystem(fsspec.AbstractFileSystem):
    """Files in a dict, each read counted; a plan of errors can be laid out."""

    protocol = "counting"
    cachable = False
    content: ClassVar[dict] = {}
    reads: ClassVar[list] = []
    errors: ClassVar[list] = []

    def info(self, path, **_):
        path = self._strip_protocol(path)
        if path in self.content:
            return {"name": path, "size": len(self.content[path]), "type": "file", "ETag": f"tag {len(path)}"}
        if any(name.startswith(f"{path}/") for name in self.content):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def ls(self, path, detail=True, **_):
        path = self._strip_protocol(path).rstrip("/")
        children = {
            f"{path}/{name[len(path) + 1 :].partition('/')[0]}" for name in self.content if name.startswith(f"{path}/")
        }
        return [self.info(name) for name in sorted(children)]

    def _open(self, path, mode="rb", **_):
        return _CountingFile(self, self._strip_protocol(path))


class _CountingFile(io.BytesIO):
    def __init__(self, system, path):
        super().__init__(system.content[path])
        self.system, self.path = system, path

    def read(self, count=-1):
        if self.system.errors:
            error = self.system.errors.pop(0)
            if error:
                raise error
        start = self.tell()
        content = super().read(count)
        self.system.reads.append((self.path, start, len(content)))
        return content


@pytest.fixture
def store(monkeypatch):
    fsspec.register_implementation("counting", CountingFileSystem, clobber=True)
    CountingFileSystem.content, CountingFileSystem.reads, CountingFileSystem.errors = {}, [], []
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    return CountingFileSystem


def test_a_prefix_is_listed_like_a_folder(store):
    store.content |= {f"bucket/set/{name}": b"x" for name in ("b/1", "a", ".hidden", "__MACOSX/1", "b/c/2", "Z/1")}
    store.content["bucket/settings"] = b"another prefix"
    files = locate("counting://bucket/set", DataReport())
    assert list(files.names()) == ["a", "Z/1", "b/1", "b/c/2"]
    assert files.size("a") == 1 and files.path("a") is None and files.fingerprint("a").startswith("tag")
    assert files.location("b/1") == "counting://bucket/set/b/1"
    assert list(locate("counting://bucket/set/", DataReport()).names()) == list(files.names())


def test_random_access_reads_little(store):
    content = np.random.default_rng(0).integers(0, 256, 20 << 20, np.uint8).tobytes()
    store.content["bucket/big.bin"] = content
    files = RemoteFiles("counting://bucket/big.bin")
    with files.open("big.bin") as stream:
        for start in (19 << 20, 5 << 20, 12 << 20):
            stream.seek(start)
            assert stream.read(100) == content[start : start + 100]
    assert sum(count for _, _, count in store.reads) <= 6 * BLOCK
    before = len(store.reads)
    with files.open("big.bin") as stream:
        stream.seek(5 << 20)
        stream.read(100)
    assert len(store.reads) == before  # cached


def test_reading_in_order_reads_ahead_up_to_a_limit(store):
    content = bytes(range(256)) * (1 << 15)  # 8 MB
    store.content["bucket/big.bin"] = content
    with RemoteFiles("counting://bucket/big.bin").open("big.bin") as stream:
        chunks = [stream.read(10_000) for _ in range(len(content) // 10_000 + 1)]
    assert b"".join(chunks) == content
    assert len(store.reads) < 20
    assert max(count for _, _, count in store.reads) <= READ_AHEAD + 2 * BLOCK
    assert sum(count for _, _, count in store.reads) == len(content)


def test_the_cache_is_bounded(store, monkeypatch):
    monkeypatch.setattr(remote, "CACHE_BYTES", 4 * BLOCK)
    store.content["bucket/big.bin"] = bytes(50 * BLOCK)
    files = RemoteFiles("counting://bucket/big.bin")
    for block in range(50):
        files.read_range("big.bin", block * BLOCK, 10)
    assert len(files._blocks) <= 4
    assert files.read_range("big.bin", 0, 20 * BLOCK) == bytes(20 * BLOCK)  # larger than the cache


def test_a_read_is_tried_again_and_then_fails_with_url_and_offset(store):
    store.content["bucket/a.bin"] = b"x" * 300_000
    files = RemoteFiles("counting://bucket/a.bin")
    store.errors += [OSError("connection reset"), TimeoutError("slow")]
    assert files.read_range("a.bin", 200_000, 5) == b"xxxxx"
    store.errors += [OSError("reset by token=abc https://me:pw@host")] * 3
    with pytest.raises(SampleError) as caught:
        files.read_range("a.bin", 0, 5)
    text = str(caught.value)
    assert "counting://bucket/a.bin" in text and "bytes 0 to 65,536" in text and "pw@" not in text
    store.errors += [PermissionError("no")]
    with pytest.raises(SampleError, match="PermissionError"):
        files.read_range("a.bin", 70_000, 5)
    assert not store.errors  # an answer that will not change is not asked for again


def test_a_zip_is_read_in_place_over_ranges(store):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in range(40):
            array = io.BytesIO()
            np.savez(array, x=np.full(20_000, number, np.float32))
            archive.writestr(f"data/{number}.npz", array.getvalue())
    store.content["bucket/data.zip"] = packed.getvalue()
    source, report = open_source("counting://bucket/data.zip")
    before = sum(count for _, _, count in store.reads)
    assert report.data_format == "npz" and len(source) == 40
    store.reads.clear()
    assert source[33]["x"][0] == 33
    assert sum(count for _, _, count in store.reads) <= 4 * BLOCK < before + len(packed.getvalue())
    assert pickle.loads(pickle.dumps(source))[7]["x"][0] == 7


def test_samples_of_a_prefix_are_those_of_the_folder(store, tmp_path):
    for number in range(12):
        write_npz(tmp_path / f"input{number}.npz", {"x": np.full(3, number)})
        store.content[f"bucket/set/input{number}.npz"] = (tmp_path / f"input{number}.npz").read_bytes()
    far, near = open_source("counting://bucket/set")[0], open_source(str(tmp_path))[0]
    assert [far[index]["x"].tolist() for index in range(12)] == [near[index]["x"].tolist() for index in range(12)]


def test_patterns_of_urls(store):
    store.content |= {f"bucket/s-{number:02}.npz": b"x" for number in (1, 2, 4)}
    report = DataReport()
    files = locate("counting://bucket/s-{01..03}.npz", report)
    assert list(files.names()) == ["s-01.npz", "s-02.npz"] and report.counts == {"shard-missing": 1}
    with pytest.raises(DataError, match="no files at this address"):
        locate("counting://bucket/t-{01..03}.npz", DataReport())


def test_what_is_not_there_and_what_is_no_address(store):
    for url in ("counting://bucket/none", "counting://bucket/none.zip"):
        with pytest.raises(DataError) as caught:
            locate(url, DataReport())
        assert caught.value.code == "data-missing" and caught.value.where == url  # shown unchanged
    with pytest.raises(UsageError) as caught:
        locate("htps://host/a.zip", DataReport())
    assert caught.value.code == "url-unknown" and caught.value.where == "htps://host/a.zip"
    assert "https://" in caught.value.expected


@pytest.mark.parametrize("url", ["https:/host/a.zip", "s3:/bucket/x", Path("gs://bucket/x"), Path("hf://datasets/a/b")])
def test_a_url_with_one_slash_is_answered_with_the_right_one(url):
    with pytest.raises(UsageError) as caught:
        open_source(url)
    assert caught.value.code == "url-unknown" and caught.value.expected == str(url).replace(":/", "://")


LIBRARIES = [
    ("s3://b/x", "s3fs"), ("gs://b/x", "gcsfs"), ("hf://datasets/a/b", "huggingface_hub"), ("https://h/x", "aiohttp"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "library"), LIBRARIES)
def test_a_missing_library_is_named_with_its_extra(monkeypatch, url, library):
    real = importlib.import_module

    def without(name, package=None):
        if name == library:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingLibraryError, match=library) as caught:
        locate(url, DataReport())
    assert "fewbit[remote]" in caught.value.hint


@pytest.mark.parametrize("scheme", ["memory", "gs", "hf"])
def test_fsspecs_own_file_systems_are_read(monkeypatch, tmp_path, scheme):
    """`memory` is fsspec's; the other two stand in for their libraries, with the paths these libraries use."""

    class Store(MemoryFileSystem):
        protocol, store, pseudo_dirs, cachable = (scheme,), {}, [""], False

        def __init__(self, requests_timeout=None, **options):
            super().__init__(**options)

        @classmethod
        def _strip_protocol(cls, path):
            return "/" + path.removeprefix(f"{scheme}://").strip("/")

    if scheme != "memory":
        monkeypatch.setitem(sys.modules, remote._LIBRARIES[scheme], ModuleType(scheme))
        monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, scheme, Store)
    system = fsspec.filesystem(scheme)
    for number in range(12):
        write_npz(tmp_path / f"input{number}.npz", {"x": np.full(3, number)})
        system.pipe(f"/bucket/set/input{number}.npz", (tmp_path / f"input{number}.npz").read_bytes())
    source, report = open_source(f"{scheme}://bucket/set")
    assert report.data_format == "npz" and [source[index]["x"][0] for index in range(12)] == list(range(12))
    system.rm("/bucket", recursive=True)
    with pytest.raises(SampleError, match=f"{scheme}://bucket/set/input5.npz"):
        pickle.loads(pickle.dumps(source))[5]


def test_secrets_are_masked_and_nothing_else():
    url = "s3://bucket/keys/monkey.zip?page=2"
    assert mask_secrets(url) == url
    for text in (
        "https://me:hunter2@host/x",
        "https://host/x?X-Amz-Signature=hunter2&X-Amz-Credential=hunter2",
        "https://host/x?sig=hunter2",
        "Authorization: Bearer hunter2hunter2",
        "hf_hunter2hunter2",
    ):
        assert "hunter2" not in mask_secrets(text)


def test_a_secret_reaches_neither_the_report_nor_the_root(store):
    store.content["me:hunter2@bucket/a.npz"] = b"x"
    report = DataReport(source="counting://me:hunter2@bucket/a.npz")
    files = locate("counting://me:hunter2@bucket/a.npz", report)
    assert "hunter2" not in report.source + files.root + files.location("a.npz")


# Against servers on this machine: needs s3fs, moto and aiohttp.


@pytest.fixture(scope="module")
def s3():
    pytest.importorskip("s3fs")
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    fsspec.config.conf["s3"] = {"endpoint_url": endpoint, "key": "testing", "secret": "testing"}
    system = fsspec.filesystem("s3")
    system.mkdir("bucket")
    yield system
    fsspec.config.conf.pop("s3")
    server.stop()


@pytest.mark.remote
@pytest.mark.filterwarnings("ignore")
def test_s3_prefixes_files_and_zips(s3, tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in range(12):
            write_npz(tmp_path / f"input{number}.npz", {"x": np.full(30_000, number, np.float32)})
            s3.pipe(f"bucket/set/input{number}.npz", (tmp_path / f"input{number}.npz").read_bytes())
            archive.write(tmp_path / f"input{number}.npz", f"input{number}.npz")
    s3.pipe("bucket/set.zip", packed.getvalue())
    for url in ("s3://bucket/set", "s3://bucket/set.zip"):
        source, report = open_source(url)
        assert report.data_format == "npz" and [int(source[index]["x"][0]) for index in range(12)] == list(range(12))
        assert int(pickle.loads(pickle.dumps(source))[5]["x"][0]) == 5
    files = locate("s3://bucket/set", DataReport())
    before = files.fingerprint("input0.npz")
    s3.pipe("bucket/set/input0.npz", b"changed")
    s3.invalidate_cache()
    assert locate("s3://bucket/set", DataReport()).fingerprint("input0.npz") != before


@pytest.mark.remote
@pytest.mark.filterwarnings("ignore")
def test_s3_errors_name_the_address(s3):
    with pytest.raises(DataError) as caught:
        locate("s3://bucket/nothing-here", DataReport())
    assert caught.value.code == "data-missing" and caught.value.where == "s3://bucket/nothing-here"
    with pytest.raises(DataError):
        locate("s3://no-such-bucket-anywhere/x", DataReport())


class _Server(BaseHTTPRequestHandler):
    """One file; with or without ranges."""

    content, ranges, sent = b"", True, []

    def do_HEAD(self):
        self._answer(False)

    def do_GET(self):
        self._answer(True)

    def _answer(self, body):
        if self.path != "/a.zip":
            self.send_error(404)
            return
        content, status = self.content, 200
        if self.ranges and (byte_range := self.headers.get("Range")):
            first, last = byte_range.removeprefix("bytes=").split("-")
            content, status = content[int(first) : int(last or len(content)) + 1], 206
        self.send_response(status)
        if self.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(content) - 1}/{len(self.content)}")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.sent.append(len(content))
            try:
                self.wfile.write(content)
            except OSError:
                pass

    def log_message(self, *_):
        pass


@pytest.fixture
def http():
    pytest.importorskip("aiohttp")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for number in range(30):
            array = io.BytesIO()
            np.savez(array, x=np.full(40_000, number, np.float32))
            archive.writestr(f"{number}.npz", array.getvalue())
    _Server.content, _Server.ranges, _Server.sent = packed.getvalue(), True, []
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.remote
@pytest.mark.filterwarnings("ignore")
def test_a_zip_behind_http_is_read_by_ranges(http):
    source, _ = open_source(f"{http}/a.zip", data_format="npz")
    _Server.sent.clear()
    assert source[17]["x"][0] == 17
    assert sum(_Server.sent) < len(_Server.content) / 10
    with pytest.raises(DataError) as caught:
        locate(f"{http}/b.zip", DataReport())
    assert caught.value.code == "data-missing"


@pytest.mark.remote
@pytest.mark.filterwarnings("ignore")
def test_a_server_without_ranges_is_an_error_not_a_download(http):
    _Server.ranges = False
    with pytest.raises(DataError, match=r"range|bytes"):
        open_source(f"{http}/a.zip", data_format="npz")
    assert sum(_Server.sent) <= len(_Server.content)
