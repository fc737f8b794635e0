"""Downloads of datasets, from a server of this machine."""

import http.server
import io
import os
import threading
import zipfile
from pathlib import Path

import pytest

from parallel_epochs.pipeline.data.readers import ogb_node


@pytest.fixture
def archive_server(monkeypatch, ogb_toy):
    """Serves ogbn-proteins, as the toy is, at the address that OGB's table has; `replies` says how, in turn."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(ogb_toy().rglob("*.gz")):
            archive.write(path, Path("proteins", path.relative_to(ogb_toy())))
    content, replies = buffer.getvalue(), []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            reply = replies.pop(0)
            if reply == "missing":
                return self.send_error(404)
            sent = {
                "cut": content[: len(content) // 2],
                "damaged": content[:999] + b"x" + content[1000:],
            }
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(sent.get(reply, content))

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        meta = ogb_node.meta("ogbn-proteins").copy()
        meta["url"] = f"http://127.0.0.1:{server.server_port}/proteins.zip"
        monkeypatch.setattr(ogb_node, "meta", lambda name: meta)
        yield replies
        server.shutdown()


@pytest.mark.parametrize("bad", ["cut", "damaged"])
def test_nothing_is_left_of_a_download_that_arrives_damaged(bad, archive_server, tmp_path):
    root = tmp_path / "dataset"
    archive_server.append(bad)
    with pytest.raises(
        ValueError,
        match=r"ogbn-proteins cannot be downloaded from http://.*proteins.zip, or arrives damaged: .*"
        r"set data.folder=DIR to the folder that holds raw/ and split/",
    ):
        ogb_node.download("ogbn-proteins", str(root))
    assert os.listdir(root) == []
    archive_server.append("whole")
    for _ in range(2):  # the second finds it
        ogb_node.download("ogbn-proteins", str(root))
    assert archive_server == [] and os.listdir(root) == ["ogbn_proteins"]
    assert ogb_node.read(root / "ogbn_proteins", "ogbn-proteins").num_nodes == 60


def test_without_a_network_the_message_says_what_to_do(archive_server, tmp_path, monkeypatch):
    root = tmp_path / "dataset"
    archive_server.append("missing")
    with pytest.raises(
        ValueError, match="cannot be downloaded from http://.*Error 404.*data.folder=DIR"
    ):
        ogb_node.download("ogbn-proteins", str(root))
    ogb_node.meta("ogbn-proteins")["url"] = "http://no-such-host.invalid/proteins.zip"
    with pytest.raises(
        ValueError, match="ogbn-proteins cannot be downloaded from http://no-such.*data.folder=DIR"
    ):
        ogb_node.download("ogbn-proteins", str(root))
    assert os.listdir(root) == []
