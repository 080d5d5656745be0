"""Hadoop on loopback: start and end Apache Hadoop's own daemons for tests. Owns their jars, settings and processes.

`up` starts a NameNode, a DataNode, a ResourceManager and two NodeManagers, all bound to 127.0.0.1 on free ports, with
an empty HDFS; `down` ends them and all they started; `status` tells how they are; `with -- COMMAND` runs a command
while they are up, HADOOP_CONF_DIR set, and ends those it started. Settings, data and logs lie in the run folder. Maven
fetches the jars by the coordinates in tests/cluster/hadoop/pom.xml, once. Needs nothing but the standard library, a
Java of 17 or newer, and Maven when the jars are not there yet.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
POM = ROOT / "tests" / "cluster" / "hadoop" / "pom.xml"
HOST = "127.0.0.1"
NODES = ("node1", "node2")
HOSTS = f"{HOST},{HOST}"
PORTS = range(20000, 32000)  # below those that systems give to outgoing connections, which come and go
GRACE = 20.0  # seconds for a daemon to end by itself
# A NodeManager has ended its containers by then, and waits 17 s more for logs that it wants to delete in 3 hours.
NODE_GRACE = 5.0
# All that the daemons see of our environment: a node of a cluster has no PYTHONPATH, SPARK_HOME or PATH of a program's.
KEPT = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "ORCA_TEST_RUN")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MARK = "ORCA_HADOOP_RUN"  # names the run folder in the environment of the daemons and of the nodes' containers
INHERITED = f"JAVA_HOME,HADOOP_CONF_DIR,PATH,LANG,TZ,SPARK_LOCAL_IP,ORCA_TEST_RUN,{MARK}"  # by containers
OPENED = ("java.lang", "java.net", "java.util", "java.io")  # packages of java.base that Hadoop looks into
JVM = "-Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+ExitOnOutOfMemoryError -Djava.net.preferIPv4Stack=true"
LOG4J = """\
log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""


@dataclass(frozen=True)
class Daemon:
    """One process of Hadoop's: its name here, its class, and for a NodeManager the node it is."""

    name: str
    main: str
    node: str = ""


NAMENODE = Daemon("namenode", "org.apache.hadoop.hdfs.server.namenode.NameNode")
DATANODE = Daemon("datanode", "org.apache.hadoop.hdfs.server.datanode.DataNode")
RESOURCEMANAGER = Daemon("resourcemanager", "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager")
NODEMANAGERS = tuple(
    Daemon(f"nodemanager-{node}", "org.apache.hadoop.yarn.server.nodemanager.NodeManager", node) for node in NODES
)
DAEMONS = (NAMENODE, DATANODE, RESOURCEMANAGER, *NODEMANAGERS)


class StartError(Exception):
    """Carry why the daemons are not up."""


def main() -> int:
    """Do what the command line asks and return the status."""
    options = arguments()
    run = Path(options.run).resolve()  # a relative one is relative to where we are called from
    if options.action == "status":
        return status(run)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM, and all that was started"))
    with only_one(run):
        if options.action == "down":
            return down(run)
        try:
            return during(run, options) if options.action == "with" else up(run, options)
        except StartError as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("ended by Ctrl-C, and all that was started", file=sys.stderr)
            return 130


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("up", "down", "status", "with"))
    parser.add_argument("--run", default=str(ROOT / "build" / "hadoop"), help="run folder (default: build/hadoop)")
    parser.add_argument("--jars", help="folder with Hadoop's jars (default: build/hadoop-jars, by Maven)")
    parser.add_argument(
        "--hosts",
        default=HOSTS,
        help="loopback addresses of the two nodes; 127.0.0.1,127.0.0.2 makes two hosts of them, on Linux",
    )
    parser.add_argument(
        "--hide",
        action="append",
        default=[],
        metavar="FOLDER",
        help="a folder that the nodes and their containers do not see (Linux, root); may be repeated",
    )
    parser.add_argument("--timeout", type=float, default=120, help="seconds that a start may take, without Maven")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a Hadoop setting of your own, such as yarn.nodemanager.resource.memory-mb=4096; may be repeated",
    )
    words = sys.argv[1:]
    end_of_ours = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:end_of_ours])
    options.command = words[end_of_ours + 1 :]
    if bool(options.command) != (options.action == "with"):
        parser.error("a command after -- is for `with`, which needs one")
    return options


@contextlib.contextmanager
def only_one(run: Path) -> Iterator[None]:
    """Let one up or down work on a run folder at a time; another waits for it."""
    run.mkdir(parents=True, exist_ok=True)
    with (run / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def up(run: Path, options: argparse.Namespace) -> int:
    """Start the daemons and wait until work can be given to them; where one fails, end all."""
    dead = [daemon.name for daemon in DAEMONS if not pid_of(run, daemon)]
    if not dead:
        print(f"up already\n{told(run)}")
        return 0
    if len(dead) < len(DAEMONS):
        print(f"not running: {', '.join(dead)}. Starting all of them anew, with an empty HDFS.", flush=True)
    end(run)
    java = find_java()
    jars = Path(options.jars).resolve() if options.jars else fetch_jars()
    started = time.monotonic()
    prepare(run, options.hosts.split(","), own_settings(options.set))
    try:
        start(run, java, jars, options.hide, deadline=started + options.timeout)
        make_folders(run)
    except BaseException:
        end(run)
        raise
    print(f"{len(DAEMONS)} daemons are up after {time.monotonic() - started:.1f} s\n{told(run)}")
    return 0


def down(run: Path) -> int:
    """End the daemons and all they started; the logs and data stay until the next start."""
    started = time.monotonic()
    ended = end(run)
    print(f"ended in {time.monotonic() - started:.1f} s: {', '.join(ended)}" if ended else "nothing was running")
    return 0


def during(run: Path, options: argparse.Namespace) -> int:
    """Run a command while the daemons are up and return its status."""
    ours = not all(pid_of(run, daemon) for daemon in DAEMONS)
    up(run, options)
    try:
        environment = os.environ | {"HADOOP_CONF_DIR": str(run / "conf")}
        return subprocess.run(options.command, env=environment).returncode
    finally:
        if ours:
            down(run)
            for data in (run / "hdfs", *(run / "nodes").glob("*/local")):  # the logs stay, for a look at them
                shutil.rmtree(data, ignore_errors=True)


def status(run: Path) -> int:
    """Tell each daemon's process and whether HDFS and YARN take work; 0 only if all do."""
    pids = {daemon: pid_of(run, daemon) for daemon in DAEMONS}
    for daemon, pid in pids.items():
        print(f"{daemon.name:18} {f'process {pid}, {memory(pid)}' if pid else 'not running'}")
    if not all(pids.values()):
        return 1
    missing = not_ready(run)
    print(missing[1] if missing else told(run))
    return 1 if missing else 0


def told(run: Path) -> str:
    """Return what one needs to know to use the daemons."""
    settings = read_settings(run)
    return "\n".join(
        [
            f"HDFS             {settings['fs.defaultFS']}, as WebHDFS http://{settings['dfs.namenode.http-address']}",
            f"ResourceManager  http://{settings['yarn.resourcemanager.webapp.address']}",
            f"logs             {run / 'logs'}, of applications {run / 'nodes'}/*/logs",
            f"export HADOOP_CONF_DIR={run / 'conf'}",
        ]
    )


# -- Java and the jars


def find_java() -> Path:
    """Return the home of the machine's Java: JAVA_HOME, or where the java of the PATH really lies."""
    home = os.environ.get("JAVA_HOME")
    if home:
        if not (Path(home) / "bin" / "java").exists():
            raise StartError(f"JAVA_HOME is {home}, which has no bin/java. Set it to a Java 17, or unset it.")
        return Path(home)
    found = shutil.which("java")
    if not found:
        raise StartError("there is no Java: JAVA_HOME is not set and no java is on the PATH. Install a Java 17.")
    return Path(found).resolve().parent.parent


def fetch_jars() -> Path:
    """Return the folder of the jars that the POM names; let Maven fill it when it is missing."""
    place = ROOT / "build" / "hadoop-jars" / hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    if place.exists():
        return place
    maven = shutil.which("mvn")
    if not maven:
        raise StartError(f"the jars of Hadoop are not in {place.parent}, and there is no mvn to fetch them with.")
    print("fetching Hadoop's jars with Maven: a minute or two when they are not in its cache (90 MB)", flush=True)
    fresh = place.with_name(f"new-{os.getpid()}")
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={fresh}"]
    try:
        quiet = ["-B", "-ntp", "-q", "-Dstyle.color=never"]
        if subprocess.run([maven, *quiet, "-f", str(POM), *goal], stdin=subprocess.DEVNULL).returncode:
            raise StartError(f"Maven could not fetch what {POM} names; its words are above.")
        with contextlib.suppress(OSError):  # another run was faster
            fresh.rename(place)  # there as a whole, or not at all
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return place


# -- settings


def own_settings(given: list[str]) -> dict[str, str]:
    wrong = [setting for setting in given if "=" not in setting]
    if wrong:
        raise StartError(f"--set takes NAME=VALUE; got {wrong[0]!r}.")
    return dict(setting.split("=", 1) for setting in given)


def prepare(run: Path, hosts: list[str], own: Mapping[str, str]) -> None:
    """Write all settings into an otherwise empty run folder."""
    if len(hosts) != len(NODES):
        raise StartError(f"--hosts takes {len(NODES)} addresses with a comma between them; got {','.join(hosts)!r}.")
    for part in ("conf", "daemons", "hdfs", "nodes", "logs", "pids", "tmp"):
        shutil.rmtree(run / part, ignore_errors=True)
        (run / part).mkdir()
    # Hadoop's jars lack the web pages, without whose folders the servers of HDFS do not start.
    for pages in ("hdfs", "datanode"):
        (run / "daemons" / "webapps" / pages).mkdir(parents=True)
    (run / "daemons" / "log4j.properties").write_text(LOG4J)
    ports = iter(free_ports(9 + 3 * len(NODES)))
    files = {**file_system(run, ports), **scheduling(ports)}
    for name, value in own.items():
        files[file_of(name)][name] = value
    for file, settings in files.items():
        write_settings(run / "conf" / file, settings)
    for node, host in zip(NODES, hosts, strict=True):
        folder = run / "nodes" / node
        (folder / "conf").mkdir(parents=True)
        settings = {**node_settings(folder, host, ports), **files["yarn-site.xml"]}
        write_settings(folder / "conf" / "yarn-site.xml", settings)


def free_ports(count: int) -> list[int]:
    """Return ports where nothing listens, on any address."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))  # only asks: it never listens there
            found.append(port)
        if len(found) == count:
            return found
    raise StartError(f"fewer than {count} ports between {PORTS.start} and {PORTS.stop} are free.")


def file_system(run: Path, ports: Iterator[int]) -> dict[str, dict[str, str]]:
    core = {
        "fs.defaultFS": f"hdfs://{HOST}:{next(ports)}",
        "hadoop.tmp.dir": str(run / "tmp"),
    }
    hdfs = {
        "dfs.namenode.http-address": f"{HOST}:{next(ports)}",
        "dfs.namenode.name.dir": (run / "hdfs" / "name").as_uri(),
        "dfs.namenode.safemode.extension": "0",
        # It asks for the name of 127.0.0.1, which not every system knows.
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.datanode.hostname": HOST,
        "dfs.datanode.address": f"{HOST}:{next(ports)}",
        "dfs.datanode.http.address": f"{HOST}:{next(ports)}",
        "dfs.datanode.ipc.address": f"{HOST}:{next(ports)}",
        "dfs.datanode.data.dir": (run / "hdfs" / "data").as_uri(),
        "dfs.replication": "1",
    }
    return {"core-site.xml": core, "hdfs-site.xml": hdfs}


def scheduling(ports: Iterator[int]) -> dict[str, dict[str, str]]:
    capacity = "yarn.scheduler.capacity."
    yarn = {
        "yarn.resourcemanager.hostname": HOST,
        "yarn.resourcemanager.address": f"{HOST}:{next(ports)}",
        "yarn.resourcemanager.scheduler.address": f"{HOST}:{next(ports)}",
        "yarn.resourcemanager.resource-tracker.address": f"{HOST}:{next(ports)}",
        "yarn.resourcemanager.webapp.address": f"{HOST}:{next(ports)}",
        "yarn.resourcemanager.admin.address": f"{HOST}:0",
        "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "250",  # containers start on heartbeats
        "yarn.nm.liveness-monitor.expiry-interval-ms": "30000",  # ten minutes is long for a test of a lost node
        "yarn.scheduler.minimum-allocation-mb": "256",
        "yarn.scheduler.maximum-allocation-mb": "3072",
        "yarn.scheduler.maximum-allocation-vcores": "4",
    }
    scheduler = {
        f"{capacity}root.queues": "default,small",
        f"{capacity}root.default.capacity": "90",
        f"{capacity}root.default.maximum-capacity": "100",
        f"{capacity}root.small.capacity": "10",  # too small for any application of Spark's: 614 MB
        f"{capacity}root.small.maximum-capacity": "10",
        f"{capacity}maximum-am-resource-percent": "0.5",
        # Memory and cores count.
        f"{capacity}resource-calculator": "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator",
        # One container for each heartbeat, so that an application's containers lie on both nodes.
        f"{capacity}per-node-heartbeat.multiple-assignments-enabled": "false",
    }
    return {"yarn-site.xml": yarn, "capacity-scheduler.xml": scheduler}


def node_settings(folder: Path, host: str, ports: Iterator[int]) -> dict[str, str]:
    return {
        "yarn.nodemanager.hostname": host,
        "yarn.nodemanager.address": f"{host}:{next(ports)}",
        "yarn.nodemanager.localizer.address": f"{host}:{next(ports)}",
        "yarn.nodemanager.webapp.address": f"{host}:{next(ports)}",
        "yarn.nodemanager.local-dirs": str(folder / "local"),
        "yarn.nodemanager.log-dirs": str(folder / "logs"),
        "yarn.nodemanager.resource.memory-mb": "3072",
        "yarn.nodemanager.resource.cpu-vcores": "4",
        "yarn.nodemanager.env-whitelist": INHERITED,
        # Otherwise a container that takes too much memory is left to cgroups, which are not used here.
        "yarn.nodemanager.resource.memory.enforced": "false",
        "yarn.nodemanager.vmem-check-enabled": "false",  # a JVM reserves far more addresses than it uses memory
        # A disk that is 90 % full is no reason to stop here; it is looked at once, also when the checker is off.
        "yarn.nodemanager.disk-health-checker.enable": "false",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        "yarn.resourcemanager.connect.retry-interval.ms": "1000",  # the ResourceManager starts at the same time
    }


def file_of(name: str) -> str:
    for prefix, file in (("dfs.", "hdfs"), ("yarn.scheduler.capacity.", "capacity"), ("yarn.", "yarn")):
        if name.startswith(prefix):
            return "capacity-scheduler.xml" if file == "capacity" else f"{file}-site.xml"
    return "core-site.xml"


def write_settings(file: Path, settings: Mapping[str, str]) -> None:
    configuration = ElementTree.Element("configuration")
    for name, value in settings.items():
        each = ElementTree.SubElement(configuration, "property")
        ElementTree.SubElement(each, "name").text = name
        ElementTree.SubElement(each, "value").text = value
    ElementTree.indent(configuration)
    ElementTree.ElementTree(configuration).write(file, encoding="utf-8", xml_declaration=True)


def read_settings(run: Path) -> dict[str, str]:
    found = {}
    for file in (run / "conf").glob("*-site.xml"):
        for each in ElementTree.parse(file).iter("property"):
            found[each.findtext("name", "")] = each.findtext("value", "")
    return found


# -- start


def start(run: Path, java: Path, jars: Path, hidden: list[str], deadline: float) -> None:
    """Start every daemon and return when HDFS can be written to and all nodes are registered."""
    yarn = {RESOURCEMANAGER: launch(run, RESOURCEMANAGER, java, jars)}
    yarn |= {each: launch(run, each, java, jars, before=blinded(hidden)) for each in NODEMANAGERS}
    form = launch(run, NAMENODE, java, jars, "-format", "-nonInteractive")  # meanwhile
    while form.poll() is None:
        check(run, yarn, deadline, "the NameNode is still preparing its folder", NAMENODE)
    if form.returncode:
        raise StartError(failed(run, NAMENODE, f"ended with status {form.returncode} when it prepared its folder"))
    daemons = {**yarn, **{each: launch(run, each, java, jars) for each in (NAMENODE, DATANODE)}}
    while missing := not_ready(run):
        check(run, daemons, deadline, missing[1], missing[0])


def blinded(hidden: list[str]) -> list[str]:
    """Return the words before a command that make it run without a sight of these folders."""
    if not hidden:
        return []
    mounts = " && ".join(f"mount -t tmpfs none {shlex.quote(str(Path(folder).resolve()))}" for folder in hidden)
    return ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$0" "$@"']


def launch(
    run: Path, daemon: Daemon, java: Path, jars: Path, *args: str, before: Iterable[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a daemon, in a process group of its own, and write its process id down."""
    places = [run / "nodes" / daemon.node / "conf"] if daemon.node else []
    path = os.pathsep.join(str(place) for place in (*places, run / "conf", run / "daemons", jars / "*"))
    opened = [word for package in OPENED for word in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")]
    told = [f"-Djava.io.tmpdir={run / 'tmp'}", f"-Dhadoop.log.dir={run / 'logs'}", mark(run, daemon)]
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment |= {"PATH": PATH, "JAVA_HOME": str(java), "HADOOP_CONF_DIR": str(run / "conf"), MARK: str(run)}
    environment["SPARK_LOCAL_IP"] = HOST  # Spark in the containers listens on loopback too
    with log_of(run, daemon).open("ab") as log:
        process = subprocess.Popen(
            [*before, str(java / "bin" / "java"), *JVM.split(), *opened, *told, "-cp", path, daemon.main, *args],
            cwd=run,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    pid_file(run, daemon).write_text(f"{process.pid}\n")
    return process


def check(
    run: Path, daemons: Mapping[Daemon, subprocess.Popen[bytes]], deadline: float, waiting: str, blamed: Daemon
) -> None:
    """Pause a moment; raise if a daemon has ended or the time is over."""
    for daemon, process in daemons.items():
        if process.poll() is not None:
            raise StartError(failed(run, daemon, f"ended with status {process.returncode} while starting"))
    if time.monotonic() > deadline:
        raise StartError(failed(run, blamed, f"is not ready in time: {waiting}"))
    time.sleep(0.2)


def failed(run: Path, daemon: Daemon, how: str) -> str:
    log = log_of(run, daemon)
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join([*lines[-30:], "", f"the {daemon.name} {how}; the end of {log} is above. All daemons are ended."])


def not_ready(run: Path) -> tuple[Daemon, str] | None:
    """Return the daemon that is waited for and what for; None when all can work."""
    settings = read_settings(run)
    namenode, manager = settings["dfs.namenode.http-address"], settings["yarn.resourcemanager.webapp.address"]
    beans = (ask(f"http://{namenode}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState") or {}).get("beans")
    if not beans:
        return NAMENODE, "the NameNode does not answer"
    if beans[0]["FSState"] != "Operational":
        return NAMENODE, f"HDFS is in the state {beans[0]['FSState']}"
    if beans[0]["NumLiveDataNodes"] < 1:
        return DATANODE, "the DataNode has not registered"
    cluster = ask(f"http://{manager}/ws/v1/cluster/nodes?states=RUNNING")
    if cluster is None:
        return RESOURCEMANAGER, "the ResourceManager does not answer"
    # By port: a node names its host as the system names 127.0.0.1.
    registered = {each["id"].split(":")[1] for each in (cluster["nodes"] or {}).get("node", [])}
    for daemon in NODEMANAGERS:
        own = read_settings(run / "nodes" / daemon.node)
        if own["yarn.nodemanager.address"].split(":")[1] not in registered:
            return daemon, f"{daemon.name} has not registered"
    return None


def ask(address: str, method: str = "GET") -> dict[str, Any] | None:
    """Return what a daemon answers; None while it does not."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy leads to loopback
    request = urllib.request.Request(address, method=method, headers={"Accept": "application/json"})
    try:
        with direct.open(request, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except (OSError, ValueError):
        return None


def make_folders(run: Path) -> None:
    """Make the folders that every HDFS has; anyone may make a home, as tests work under several names."""
    user = pwd.getpwuid(os.geteuid()).pw_name  # who started the NameNode is its superuser
    address = read_settings(run)["dfs.namenode.http-address"]
    for folder in ("tmp", "user"):
        query = f"op=MKDIRS&permission=1777&user.name={user}"
        if ask(f"http://{address}/webhdfs/v1/{folder}?{query}", "PUT") != {"boolean": True}:
            raise StartError(failed(run, NAMENODE, f"did not make /{folder}"))


# -- processes


def pid_file(run: Path, daemon: Daemon) -> Path:
    return run / "pids" / daemon.name


def log_of(run: Path, daemon: Daemon) -> Path:
    return run / "logs" / f"{daemon.name}.log"


def mark(run: Path, daemon: Daemon) -> str:
    """Return the argument by which a process is known to be this daemon of this run folder."""
    return f"-Dorca.hadoop={run}:{daemon.name}"


def pid_of(run: Path, daemon: Daemon) -> int | None:
    """Return the process of a daemon if it lives: a number that another process got since is not taken for it."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(pid_file(run, daemon).read_text())
        if mark(run, daemon) in command_line(pid):
            return pid
    return None


def living(run: Path, daemons: Iterable[Daemon]) -> list[int]:
    return [pid for daemon in daemons if (pid := pid_of(run, daemon))]


def command_line(pid: int) -> list[str]:
    """Return a process's arguments; none when it is gone, or is only waiting to be collected."""
    if Path("/proc/self/cmdline").exists():
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        return []
    said = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True)
    return said.stdout.split()


def memory(pid: int | None) -> str:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return f"{int(next(line for line in lines if line.startswith('VmRSS')).split()[1]) // 1024} MB"
    return "memory unknown"


def end(run: Path) -> list[str]:
    """End what runs, the nodes first, and return its names when all of it is gone."""
    ended = []
    for group, grace in ((NODEMANAGERS, NODE_GRACE), ((RESOURCEMANAGER, DATANODE, NAMENODE), GRACE)):
        ended += [daemon.name for daemon in group if pid_of(run, daemon)]
        for kind, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, GRACE)):
            for pid in living(run, group):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, kind)
            gone(partial(living, run, group), patience)
    # A NodeManager ends its containers, unless it was killed.
    orphans = containers(run)
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    left = gone(partial(containers, run), GRACE)
    if left:
        raise StartError(f"these processes cannot be ended: {left}.")
    shutil.rmtree(run / "pids", ignore_errors=True)
    return ended + [f"process {pid} of a container" for pid in orphans]


def gone(find: Callable[[], list[int]], patience: float) -> list[int]:
    """Wait until no such process is found any more; return those that still are when the time is over."""
    until = time.monotonic() + patience
    while (left := find()) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def containers(run: Path) -> list[int]:
    """Return the processes that carry the mark of this run folder (which Linux alone tells of others)."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{MARK}={run}".encode() in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
