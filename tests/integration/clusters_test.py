"""Real launchers and networks on one host: Slurm's own daemons, and two nodes as two network
namespaces. Each test says why it is skipped where the host does not allow it."""

import os
import pathlib
import shutil
import socket
import subprocess
import time
import unittest

from cli_case import QUICKSTART, SHORT, TRELLIS, Case
from processes_test import free_port

SLURM = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"


def missing(tools):
    """Why a test of these programs cannot run; "": it can."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [tool for tool in tools if shutil.which(tool, path=PATH) is None]
    return f"not installed: {', '.join(absent)} (scripts/setup --tests)" if absent else ""


class ClusterCase(Case):
    def train(self, log, *more):
        return [
            *(str(TRELLIS), "train", str(QUICKSTART), *SHORT, "--device", "cpu"),
            *("trainer.max_steps=2", f"exp_manager.explicit_log_dir={self.dir / log}", *more),
        ]

    def run_here(self, command, **environment):
        env = {**os.environ, "PATH": PATH, "TRELLIS_CACHE": "off", **environment}
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)

    def losses(self, log):
        lines = (self.dir / log / "metrics.jsonl").read_text().splitlines()
        return [line.split('"loss":')[1].split(",")[0] for line in lines if '"loss":' in line]

    def check_equals_threads(self, log):
        alone = self.run_here(self.train("threads"))
        self.assertEqual(alone.returncode, 0, alone.stderr[-2000:])
        self.assertEqual(len(self.losses("threads")), 2)
        self.assertEqual(self.losses(log), self.losses("threads"))


class Slurm(ClusterCase):
    """Controller and node are started by the test, with files in its folder."""

    def setUp(self):
        super().setUp()
        if why := missing(SLURM):
            self.skipTest(why)
        self.daemons = []
        self.addCleanup(self.end_daemons)

    def daemon(self, *command):
        log = open(self.dir / f"{pathlib.Path(command[0]).name}.log", "w")
        env = {**os.environ, "PATH": PATH, "SLURM_CONF": str(self.dir / "slurm.conf")}
        self.daemons.append(subprocess.Popen(command, stdout=log, stderr=log, env=env))
        log.close()

    def end_daemons(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def start_slurm(self):
        key = self.dir / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        munge = self.dir / "munge.socket"
        files = {name: self.dir / f"munge.{name}" for name in ("pid", "seed", "log")}
        self.daemon(
            *("munged", "--foreground", "--force", f"--socket={munge}", f"--key-file={key}"),
            *(f"--{name}-file={path}" for name, path in files.items()),
        )
        host = socket.gethostname().split(".")[0]
        for folder in ("state", "spool"):
            (self.dir / folder).mkdir()
        (self.dir / "slurm.conf").write_text(
            f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={munge}
CryptoType=crypto/munge
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
StateSaveLocation={self.dir}/state
SlurmdSpoolDir={self.dir}/spool
SlurmctldPidFile={self.dir}/slurmctld.pid
SlurmdPidFile={self.dir}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
        )
        # No plugin of this file uses cgroups. The one for version 1 starts where none are mounted.
        (self.dir / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self.until(munge.exists)
        self.daemon("slurmctld", "-D")
        self.daemon("slurmd", "-D", "-N", host)
        self.until(lambda: "idle" in self.slurm("sinfo", "--noheader", "-o", "%T").stdout)

    def until(self, condition, seconds=30):
        deadline = time.monotonic() + seconds
        while not condition():
            logs = "\n".join(path.read_text()[-1500:] for path in self.dir.glob("*.log"))
            self.assertLess(time.monotonic(), deadline, logs)
            time.sleep(0.1)

    def slurm(self, *command):
        return self.run_here(command, SLURM_CONF=str(self.dir / "slurm.conf"))

    def test_srun_starts_a_job_that_equals_threads(self):
        self.start_slurm()
        done = self.slurm("srun", "--ntasks", "4", *self.train("srun"))
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertIn("Loss", done.stdout)
        self.check_equals_threads("srun")


class Namespaces(ClusterCase):
    """Two nodes: no loopback between them, each with its own interface. Two processes on each: they
    reach each other by sockets and shared memory, those of the other node by Gloo."""

    def setUp(self):
        super().setUp()
        if why := missing(("ip",)):
            self.skipTest(why)
        self.nodes = [f"trellis{os.getpid()}{end}" for end in "ab"]
        try:
            self.make_nodes()
        except subprocess.CalledProcessError as error:
            self.skipTest(f"no network namespaces here: {error.stderr.strip()}")

    def ip(self, *words):
        subprocess.run(
            ["ip", *words], check=True, capture_output=True, text=True, env={"PATH": PATH}
        )

    def make_nodes(self):
        if not os.path.ismount("/run/netns"):  # `ip` mounts it, and leaves it
            self.addCleanup(subprocess.run, ["umount", "/run/netns"], stderr=subprocess.DEVNULL)
        for node in self.nodes:
            self.ip("netns", "add", node)
            self.addCleanup(subprocess.run, ["ip", "netns", "del", node], env={"PATH": PATH})
        first, second = self.nodes
        ends = ("type", "veth", "peer", "name", "eth0", "netns", second)
        self.ip("link", "add", "eth0", "netns", first, *ends)
        for number, node in enumerate(self.nodes, 1):
            self.ip("-n", node, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            self.ip("-n", node, "link", "set", "eth0", "up")
            self.ip("-n", node, "link", "set", "lo", "up")

    def test_two_nodes_equal_threads(self):
        port, jobs = free_port(), []
        for process, node in enumerate(node for node in self.nodes for _ in range(2)):
            env = {
                **os.environ,
                "TRELLIS_CACHE": "off",
                "RANK": str(process),
                "WORLD_SIZE": "4",
                "MASTER_ADDR": "10.77.0.1",
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "eth0",
                "PATH": PATH,
            }
            command = ["ip", "netns", "exec", node, *self.train("nodes")]
            jobs.append(
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
                )
            )
        for job in jobs:
            _, err = job.communicate(timeout=120)
            self.assertEqual(job.returncode, 0, err[-3000:])
        self.check_equals_threads("nodes")


if __name__ == "__main__":
    unittest.main()
