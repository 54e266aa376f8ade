"""Carries Ethernet frames between two tap devices, late or not at all: a wire for netns.py.

    relay.py NEAR_FD FAR_FD

Commands come on standard input, one a line, and each is answered by "ok" when it holds:

    delay SECONDS   each frame arrives so much later, both ways
    drop WHAT       frames are lost: near (what the near side sends), far, or both
    pass            no delay, no loss

It ends with its standard input.
"""

import collections
import os
import selectors
import sys
import time

FRAME_MAX = 65536
QUEUE_MAX = 20000  # frames on their way; more are lost, as on any wire


class Wire:
    def __init__(self, fds):
        self.fds = fds
        self.delay = 0.0
        self.dropped = set()
        self.under_way = collections.deque()  # (due, fd, frame), in order of due

    def command(self, line):
        words = line.split()
        if words[:1] == ["delay"] and len(words) == 2:
            self.delay = float(words[1])
        elif words[:1] == ["drop"] and words[1:] in (["near"], ["far"], ["both"]):
            self.dropped = {0, 1} if words[1] == "both" else {0 if words[1] == "near" else 1}
        elif words == ["pass"]:
            self.delay, self.dropped = 0.0, set()
        else:
            return "what?"
        return "ok"

    def take(self, side):
        """All frames that a side has sent."""
        while True:
            try:
                frame = os.read(self.fds[side], FRAME_MAX)
            except BlockingIOError:
                return
            if side not in self.dropped and len(self.under_way) < QUEUE_MAX:
                self.under_way.append((time.monotonic() + self.delay, self.fds[1 - side], frame))

    def deliver(self):
        """Frames that are due; returns the seconds until the next one is, or None."""
        now = time.monotonic()
        while self.under_way and self.under_way[0][0] <= now:
            _, fd, frame = self.under_way.popleft()
            try:
                os.write(fd, frame)
            except OSError:
                pass  # full, or its side is down: lost
        return max(0.0, self.under_way[0][0] - now) if self.under_way else None


def main():
    wire = Wire([int(fd) for fd in sys.argv[1:3]])
    selector = selectors.DefaultSelector()
    for side, fd in enumerate(wire.fds):
        selector.register(fd, selectors.EVENT_READ, side)
    selector.register(sys.stdin, selectors.EVENT_READ, "command")
    while True:
        for key, _ in selector.select(wire.deliver()):
            if key.data != "command":
                wire.take(key.data)
                continue
            line = sys.stdin.readline()
            if not line:
                return
            print(wire.command(line), flush=True)


main()
