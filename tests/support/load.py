"""Clients that ask a server again and again, and what they see."""

import http.client
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from threading import Thread

from servers import BOUNDARY, form


@dataclass
class Seen:
    """What all clients saw."""

    statuses: Counter = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def percentile(self, share):
        return sorted(self.seconds)[min(int(share * len(self.seconds)), len(self.seconds) - 1)]


def ask_for(seconds, clients, host, port, files):
    """Let clients ask for flow, each on one connection; return what they saw."""
    seen, end, body = Seen(), time.monotonic() + seconds, form(files)
    threads = [Thread(target=_client, args=(host, port, body, end, seen)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def _client(host, port, body, end, seen):
    connection = http.client.HTTPConnection(host, port, timeout=120)
    kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    while time.monotonic() < end:
        start = time.monotonic()
        connection.request("POST", "/flow", body, kind)
        answer = connection.getresponse()
        answer.read()
        seen.statuses[answer.status] += 1
        if answer.status == 200:
            seen.seconds.append(time.monotonic() - start)
        elif answer.status == 503:
            time.sleep(float(answer.headers["Retry-After"]))
    connection.close()


def numbers(host, port):
    """What the server counts, by name; without numbers that have labels."""
    connection = http.client.HTTPConnection(host, port, timeout=120)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.findall(r"^dicl_flow_(\w+) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}
