"""Drives Chromium by the DevTools protocol, over a pair of pipes: https://chromedevtools.github.io/devtools-protocol."""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--enable-unsafe-swiftshader",  # draws WebGL without a GPU
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
    "--disable-component-update",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "about:blank",
)


class Unanswered(Exception):
    """Chromium gave no answer, or an error in place of one."""


class Browser:
    """A page of a Chromium of its own; used in a ``with`` statement.

    Attributes:
        complaints: errors and warnings of the console, exceptions, and requests that failed or went to a network.
    """

    def __init__(self, profile: Path):
        chromium = shutil.which("chromium")
        assert chromium, "make test-system installs chromium"
        self.complaints: list[str] = []
        self._number, self._buffer, self._answers = 0, b"", {}
        their_input, self._output = os.pipe()
        self._input, their_output = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4.
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$0" "$@" 3<&{their_input} 4>&{their_output}',
                chromium,
                f"--user-data-dir={profile}",
                *FLAGS,
            ],
            pass_fds=(their_input, their_output),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_input), os.close(their_output)
        (target,) = (
            t for t in self._send("Target.getTargets")["targetInfos"] if t["type"] == "page"
        )
        self._session = self._send(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *exc) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._input), os.close(self._output)

    def call(self, method: str, **parameters) -> dict:
        """Call a method of the protocol on the page."""
        return self._send(method, session=self._session, **parameters)

    def run(self, script: str):
        """Evaluate JavaScript, a promise to its end, and return its value."""
        answer = self.call(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, page: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a file, at a width and with a theme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        self.call("Page.navigate", url=page.as_uri())
        self.wait_for("document.readyState == 'complete'")

    def wait_for(self, condition: str, seconds: float = 30) -> None:
        """Wait until an expression is true, whatever page is loaded meanwhile."""
        end = time.monotonic() + seconds
        while True:
            try:
                answer = self._send(
                    "Runtime.evaluate",
                    session=self._session,
                    seconds=2,
                    expression=condition,
                    returnByValue=True,
                )
            except Unanswered:  # the page was replaced during the question
                answer = {}
            if answer.get("result", {}).get("value") is True:
                return
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.05)

    def _send(
        self, method: str, *, session: str | None = None, seconds: float = 60, **parameters
    ) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(
            self._output,
            json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0",
        )
        end = time.monotonic() + seconds
        while self._number not in self._answers:
            if not select.select([self._input], [], [], max(end - time.monotonic(), 0))[0]:
                raise Unanswered(f"no answer to {method} in {seconds:g} s")
            received = os.read(self._input, 1 << 20)
            assert received, "chromium has ended"
            *whole, self._buffer = (self._buffer + received).split(b"\0")
            for text in whole:
                self._take(json.loads(text))
        answer = self._answers.pop(self._number)
        if "error" in answer:
            raise Unanswered(f"{method}: {answer['error']}")
        return answer["result"]

    def _take(self, message: dict) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        method, event = message["method"], message["params"]
        if method == "Runtime.exceptionThrown":
            self.complaints.append(
                event["exceptionDetails"].get("exception", {}).get("description", str(event))
            )
        elif method == "Runtime.consoleAPICalled" and event["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.complaints.append(str(event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            if "GL Driver Message (OpenGL, Performance" not in event["entry"]["text"]:
                self.complaints.append(event["entry"]["text"])
        elif method == "Network.requestWillBeSent" and event["request"]["url"].split(":")[0] in (
            "http",
            "https",
            "ws",
        ):
            self.complaints.append(event["request"]["url"])
