"""A store on this machine that speaks as much of S3 as pyarrow needs; it checks no signatures."""

import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Handler(BaseHTTPRequestHandler):
    """Answers requests for /BUCKET/KEY; the server keeps all objects in a dictionary."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        query = self._query()
        if "list-type" in query:
            return self._send(200, _result("ListBucket", self._listed(query)))
        data = self.server.objects.get(self._path())
        if data is None:
            return self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            return self._send(200, data)
        first, last = int(asked[1]), min(int(asked[2]), len(data) - 1)
        whole = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        return self._send(206, data[first : last + 1], whole)

    def do_HEAD(self):
        is_bucket = self._path().count("/") == 1
        data = b"" if is_bucket else self.server.objects.get(self._path())
        self._send(404 if data is None else 200, data or b"")

    def do_PUT(self):
        """Take an object, or a part of one."""
        data = self._body()
        part = self._query().get("partNumber")
        if part:
            self.server.parts.setdefault(self._path(), {})[int(part[0])] = data
        else:
            self.server.objects[self._path()] = data
        self._send(200, b"", {"ETag": '"0"'})

    def do_POST(self):
        """Begin an object of several parts, or finish it: only then it is there."""
        self._body()
        path = self._path()
        if "uploads" in self._query():
            return self._send(200, _result("InitiateMultipartUpload", "<UploadId>1</UploadId>"))
        parts = self.server.parts.pop(path, {})
        self.server.objects[path] = b"".join(parts[number] for number in sorted(parts))
        return self._send(200, _result("CompleteMultipartUpload", "<ETag>0</ETag>"))

    def do_DELETE(self):
        self.server.objects.pop(self._path(), None)
        self._send(204, b"")

    def log_message(self, *words):
        """Print nothing."""

    def _body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _path(self):
        return unquote(urlsplit(self.path).path)

    def _query(self):
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)

    def _listed(self, query):
        """The objects below a prefix; those below a folder as one, if that is asked for."""
        start = f"{self._path().rstrip('/')}/"
        (prefix,), (delimiter,) = query.get("prefix", [""]), query.get("delimiter", [""])
        entries = {}
        for path, data in sorted(self.server.objects.items()):
            key = path.removeprefix(start)
            if not path.startswith(start + prefix):
                continue
            folder, found, _ = key[len(prefix) :].partition(delimiter or "\0")
            if found:
                name = f"<Prefix>{escape(prefix + folder + delimiter)}</Prefix>"
                entries[folder] = f"<CommonPrefixes>{name}</CommonPrefixes>"
            else:
                about = f"<Key>{escape(key)}</Key><Size>{len(data)}</Size>"
                when = "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                entries[key] = f"<Contents>{about}{when}</Contents>"
        found = f"<KeyCount>{len(entries)}</KeyCount><IsTruncated>false</IsTruncated>"
        return found + "".join(entries.values())

    def _send(self, code, data, headers=()):
        self.send_response(code)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _result(call, text):
    return f"<{call}Result>{text}</{call}Result>".encode()


@contextmanager
def s3_server():
    """Run a server; yield its address and its objects, by /BUCKET/KEY."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.objects, server.parts = {}, {}
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.objects
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
