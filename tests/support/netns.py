"""Two network namespaces of our own, joined by a wire: two machines as far as the nodes can tell.

    netns.enter()                            # first of all: this program goes on in a namespace
    with netns.Network() as network:         # ... and the second one stands beside it
        network.there("ip", "address")       # a command on the far side
        network.link("far", "down")          # unplug it
    with netns.Network(relay=True) as network:
        network.relay("delay 0.2")           # or "drop far", "pass": relay.py says what there is

Nothing of this has a name on the machine, so nothing can be left behind and nobody else's can be hit:
the near namespace is that of this process and the far one that of a child which ends with us, and the
kernel takes a namespace, its links and its addresses away with its last process.

The wire is a pair of veth devices, at the speed of memory. With relay=True it is two tap devices and a
process that carries frames between them: delay and loss without netem, which small kernels lack.
"""

import fcntl
import os
import pathlib
import shutil
import struct
import subprocess
import sys

from troupe_test import skip_all

TOOLS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount"}
# A mount namespace as well: UCX looks for devices in /sys, which shows the namespace that mounted it.
ISOLATE = ["--net", "--mount"]
MOUNT_SYS = ["mount", "-t", "sysfs", "sysfs", "/sys"]
ENTERED = "TROUPE_NETNS_PID"  # set in the environment of the process that has entered, with its id
ADDRESSES = {"near": "10.77.0.1", "far": "10.77.0.2"}
MTU = 9000
RELAY = pathlib.Path(__file__).with_name("relay.py")
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


def run(*command):
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def enter():
    """Starts this program again in a new network namespace, and returns there. As root, or in a user
    namespace where the machine lets everybody make one; else the test is skipped."""
    if os.environ.get(ENTERED) == str(os.getpid()):
        try_wires()
        return
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            skip_all(f"{tool} is not installed (package {package})")
    for options in (ISOLATE, ["--user", "--map-root-user", *ISOLATE]):
        tried = subprocess.run(
            ["unshare", *options, *MOUNT_SYS], capture_output=True, text=True, check=False
        )
        if tried.returncode == 0:
            os.environ[ENTERED] = str(os.getpid())  # exec keeps the id
            os.execvp("unshare", ["unshare", *options, sys.executable, *sys.argv])
    skip_all("this machine lets us make no network namespace: " + tried.stderr.strip(), forbidden=True)


def try_wires():
    """Ends the test where the kernel has no devices for wires, or lets us make none."""
    try:
        run(*MOUNT_SYS)
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "try0", "type", "veth", "peer", "name", "try1")
        run("ip", "link", "delete", "try0")
        os.close(open_tap("try0"))
    except (RuntimeError, OSError) as error:
        skip_all(f"this machine lets us wire no namespaces: {error}", forbidden=True)


def open_tap(name):
    """A descriptor that reads and writes the frames of a new tap device of this namespace."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


class Network:
    def __init__(self, relay=False):
        self.with_relay = relay
        self.holder = self.carrier = None
        self.devices = {"near": "near0", "far": "far0"}

    def __enter__(self):
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def open(self):
        self.holder = subprocess.Popen(
            ["unshare", *ISOLATE, "sh", "-c", " ".join(MOUNT_SYS) + " && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.holder.stdin.write(b"?\n")
        self.holder.stdin.flush()
        if self.holder.stdout.readline() != b"?\n":  # cat runs, so its namespace is there
            raise RuntimeError("no second network namespace")
        near, far = self.devices["near"], self.devices["far"]
        if self.with_relay:
            taps = [open_tap(near), open_tap(far)]
            self.carrier = subprocess.Popen(
                [sys.executable, RELAY, *map(str, taps)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=taps,
                text=True,
            )
            for tap in taps:
                os.close(tap)
        else:
            run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        run("ip", "link", "set", far, "netns", str(self.holder.pid))
        self.there("ip", "link", "set", "lo", "up")
        for side, address in ADDRESSES.items():
            self.on(side, "ip", "address", "add", f"{address}/24", "dev", self.devices[side])
            self.on(side, "ip", "link", "set", self.devices[side], "mtu", str(MTU), "up")

    def close(self):
        for process in (self.carrier, self.holder):
            if process is not None:
                process.kill()
                process.wait()
                process.stdin.close()
                process.stdout.close()
        if self.holder is not None and not self.with_relay:
            # The kernel takes the far end away when it comes to it; the next network wants the name.
            subprocess.run(["ip", "link", "delete", self.devices["near"]], capture_output=True)
        self.carrier = self.holder = None

    def inside(self, side):
        """What stands before a command that shall run on a side."""
        if side == "near":
            return []
        return ["nsenter", f"--target={self.holder.pid}", *ISOLATE, "--"]

    def on(self, side, *command):
        return run(*self.inside(side), *command)

    def there(self, *command):
        return self.on("far", *command)

    def link(self, side, state):
        """up or down, as by `ip link`: the other side loses its carrier."""
        self.on(side, "ip", "link", "set", self.devices[side], state)

    def relay(self, command):
        """Changes what the wire does; returns when it does so."""
        self.carrier.stdin.write(command + "\n")
        self.carrier.stdin.flush()
        if self.carrier.stdout.readline() != "ok\n":
            raise RuntimeError(f"relay: {command}: not understood")
