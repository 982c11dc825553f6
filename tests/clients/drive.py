"""Small workflows of clients of Slurm, as their users write them: `python drive.py N CLIENT ...` runs each in a directory
of its own, N side by side, on whatever answers to `sbatch`; the results are in `CLIENT/result` as JSON, what was
printed is in `CLIENT.log`. `python drive.py` alone: what it knows.

The clients are in the environment of `.ci/clients.txt`. None of them is changed for vrm.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from collections.abc import Callable

BIN = Path(sys.executable).parent
LIMIT = 150.0


def run(*argv: object, check: bool = True, **env: str) -> str:
    """What a program prints."""
    done = subprocess.run([str(word) for word in argv], text=True, capture_output=True, timeout=LIMIT, check=False,
                          env={**os.environ, **env})
    if check and done.returncode:
        raise SystemExit(f"{argv}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def until(condition: Callable[[], Any], what: str) -> Any:
    """The condition's first true value; what it asks for is another program's answer, so not too often."""
    end = time.monotonic() + LIMIT
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise SystemExit(f"not within {LIMIT:g} s: {what}")
        select.select([], [], [], 0.05)  # give way to what is waited for


def partition() -> str:
    """The name of one."""
    return run("sinfo", "-h", "-o", "%P").split()[0].rstrip("*")


def square(number: int) -> int:
    """What the jobs compute; 13 is unlucky."""
    if number == 13:
        raise ValueError("13")
    return number * number


def submitit() -> Any:
    """An array of functions, one of which fails."""
    import submitit

    executor = submitit.AutoExecutor(folder="log", cluster="slurm")
    executor.update_parameters(timeout_min=10, nodes=1, tasks_per_node=1, cpus_per_task=1, name="square")
    jobs = executor.map_array(square, [1, 2, 3, 13])
    found: list[Any] = []
    for job in jobs:
        try:
            found.append(job.result())
        except Exception as error:
            found.append("13" in str(error) or str(error))
    return found


def pysqa() -> Any:
    """A job that runs, one that waits behind it, which is deleted."""
    from pysqa import QueueAdapter

    adapter = QueueAdapter(queue_type="SLURM")
    where = partition()
    work = Path("work").absolute()
    work.mkdir()
    first = adapter.submit_job(job_name="first", working_directory=str(work), cores=2, run_time_max=120, partition=where,
                               command="until [ -e ../go ]; do sleep 0.1; done; echo done >out")
    until(lambda: adapter.get_status_of_job(process_id=first) == "running", "the first job runs")
    second = adapter.submit_job(job_name="second", working_directory=str(work), cores=1, run_time_max=120, partition=where,
                                dependency_list=[first], command="echo never >never")
    waits = adapter.get_status_of_job(process_id=second)
    table = adapter.get_queue_status()
    mine = sorted(name.strip() for name in table[table.jobid.isin([first, second])].jobname)
    adapter.delete_job(process_id=second)
    Path("go").touch()
    until(lambda: adapter.get_status_of_job(process_id=first) in (None, "finished", "completed"), "the first job ends")
    return {"waits": waits, "names": mine, "out": Path("work/out").read_text(), "never": Path("work/never").exists(),
            "deleted": adapter.get_status_of_job(process_id=second)}


def psij() -> Any:
    """Jobs that succeed, fail, and are cancelled, with their states."""
    from datetime import timedelta

    import psij
    from psij.executors.batch.batch_scheduler_executor import BatchSchedulerExecutorConfig

    executor = psij.JobExecutor.get_instance("slurm", config=BatchSchedulerExecutorConfig(
        launcher_log_file=None, work_directory=Path("psij").absolute(), queue_polling_interval=1,
        initial_queue_polling_delay=1))

    def job(*words: str) -> Any:
        return psij.Job(psij.JobSpec(
            executable=words[0], arguments=list(words[1:]), stdout_path=Path(f"{words[-1]}.out").absolute(),
            directory=Path.cwd(), attributes=psij.JobAttributes(duration=timedelta(minutes=2)),
            resources=psij.ResourceSpecV1(node_count=1, processes_per_node=1), launcher="single"))

    jobs = [job("/bin/echo", "one"), job("/bin/false", "two"), job("/bin/sleep", "300")]
    for each in jobs:
        executor.submit(each)
    jobs[2].wait(timeout=timedelta(seconds=LIMIT), target_states=[psij.JobState.ACTIVE])
    jobs[2].cancel()
    states = [each.wait(timeout=timedelta(seconds=LIMIT)) for each in jobs]
    return {"states": [state.state.name if state else None for state in states], "out": Path("one.out").read_text()}


def qtoolkit() -> Any:
    """A job, what is known of it, and one that is cancelled."""
    from qtoolkit.core.data_objects import QResources
    from qtoolkit.io.slurm import SlurmIO
    from qtoolkit.manager import QueueManager

    manager = QueueManager(SlurmIO())

    def submit(name: str, command: str) -> Any:
        return manager.submit(command, options=QResources(
            job_name=name, processes=2, time_limit=120, output_filepath=f"{name}.out", error_filepath=f"{name}.err",
            process_placement=None), work_dir=os.getcwd(), script_fname=f"{name}.sh")

    first = submit("first", "until [ -e go ]; do sleep 0.1; done; echo $SLURM_NTASKS")
    until(lambda: (job := manager.get_job(first.job_id)) and job.state.name == "RUNNING", "it runs")
    job = manager.get_job(first.job_id)
    second = submit("second", "sleep 300")
    cancelled = manager.cancel(second.job_id)
    Path("go").touch()
    until(lambda: (job := manager.get_job(first.job_id)) is None or job.state.name == "DONE", "it ends")
    return {"name": job.name, "state": job.state.name, "sub": str(job.sub_state), "cpus": job.info.cpus,
            "nodes": job.info.nodes, "limit": job.info.time_limit, "cancelled": cancelled.status.name,
            "out": Path("first.out").read_text()}


REFRAME_CONFIG = """
site_configuration = {{
    'systems': [{{'name': 'here', 'hostnames': ['.*'], 'partitions': [
        {{'name': 'all', 'scheduler': '{scheduler}', 'launcher': 'srun', 'environs': ['builtin']{node}}}]}}],
    'environments': [{{'name': 'builtin'}}],
    'general': [{{'poll_rate_min': 1, 'poll_rate_max': 5, 'resolve_module_conflicts': False}}],
}}
"""
REFRAME_TESTS = """
import reframe as rfm
import reframe.utility.sanity as sn

@rfm.simple_test
class Hello(rfm.RunOnlyRegressionTest):
    valid_systems = ['*']
    valid_prog_environs = ['*']
    executable = 'echo'
    executable_opts = ['hello']
    num_tasks = 2
    time_limit = '2m'

    @sanity_function
    def said(self):
        return sn.assert_eq(sn.count(sn.findall('hello', self.stdout)), 2)

@rfm.simple_test
class Stream(rfm.RunOnlyRegressionTest):
    valid_systems = ['*']
    valid_prog_environs = ['*']
    executable = 'sh'
    executable_opts = ['-c', "'echo triad 42.5'"]
    num_tasks = 1
    time_limit = '2m'

    @sanity_function
    def said(self):
        return sn.assert_found('triad', self.stdout)

    @performance_function('GB/s')
    def triad(self):
        return sn.extractsingle(r'triad (\\S+)', self.stdout, 1, float)

@rfm.simple_test
class Wrong(Hello):
    executable = 'false'
"""


def reframe(scheduler: str) -> Any:
    """Tests that pass and one that fails, with a figure."""
    Path("settings.py").write_text(REFRAME_CONFIG.format(scheduler=scheduler, node=""))
    Path("tests.py").write_text(REFRAME_TESTS)
    run(BIN / "reframe", "-C", "settings.py", "-c", "tests.py", "-r", "--report-file", "report.json", "--prefix", "out",
        check=False, RFM_ENABLE_RESULTS_STORAGE="0", HOME=os.getcwd())
    report = json.loads(Path("report.json").read_text())
    found = {}
    for session in report["runs"]:
        for case in session["testcases"]:
            values = case.get("perfvalues") or {}
            found[case["name"]] = [case["result"], sorted(str(value[0] if isinstance(value, list) else value)
                                                           for value in values.values())]
    return found


SNAKEFILE = """
rule all:
    input: expand("part.{n}", n=range(2)), "wide"

rule part:
    output: "part.{n}"
    threads: 1
    resources: runtime=2, mem_mb=20, slurm_partition="PARTITION"
    shell: "echo {wildcards.n} >{output}"

rule wide:
    output: "wide"
    threads: 2
    resources: runtime=2, mem_mb=20, slurm_partition="PARTITION"
    shell: "echo threads {threads} >{output}"
"""


def snakemake() -> Any:
    """A workflow of three jobs of two kinds. Each starts Snakemake twice, which takes long: none waits for another."""
    Path("Snakefile").write_text(SNAKEFILE.replace("PARTITION", partition()))
    run(BIN / "snakemake", "--executor", "slurm", "--jobs", 4, "--latency-wait", 2, "--slurm-no-account",
        "--slurm-init-seconds-before-status-checks", 1, "--seconds-between-status-checks", 1, "--slurm-keep-successful-logs",
        "--nolock", HOME=os.getcwd(), XDG_CACHE_HOME=os.getcwd())
    return "".join(Path(name).read_text() for name in ("part.0", "part.1", "wide"))


def parsl() -> Any:
    """Functions on workers that are started by a batch job."""
    import socket

    import parsl
    from parsl import python_app
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.launchers import SrunLauncher
    from parsl.providers import SlurmProvider

    @python_app
    def twice(number: int) -> int:
        return 2 * number

    with parsl.load(Config(executors=[HighThroughputExecutor(
            label="all", address=socket.gethostbyname(socket.gethostname()), max_workers_per_node=2,
            provider=SlurmProvider(nodes_per_block=1, cores_per_node=2, init_blocks=1, max_blocks=1, walltime="00:02:00",
                                   exclusive=False, cmd_timeout=20, launcher=SrunLauncher(),
                                   worker_init=f"export PATH={BIN}:$PATH PYTHONPATH={':'.join(sys.path)}"))],
            strategy="none", usage_tracking=0)):
        return [future.result(timeout=LIMIT) for future in [twice(number) for number in range(4)]]


def jube() -> Any:
    """A parameter study; its jobs say that they are ready by a file."""
    Path("study.xml").write_text("""<?xml version="1.0" encoding="UTF-8"?>
<jube><benchmark name="study" outpath="bench">
  <parameterset name="set"><parameter name="number" type="int">1,2,3</parameter></parameterset>
  <fileset name="files"><copy>job.sh</copy></fileset>
  <substituteset name="sub"><iofile in="job.sh" out="submit.sh"/><sub source="#NUMBER#" dest="$number"/></substituteset>
  <step name="run"><use>set</use><use>files</use><use>sub</use>
    <do done_file="ready">sbatch submit.sh</do></step>
  <patternset name="pattern"><pattern name="squared" type="int">square $jube_pat_int</pattern></patternset>
  <analyser name="analyse"><use>pattern</use><analyse step="run"><file>job.out</file></analyse></analyser>
  <result><use>analyse</use><table name="table" style="csv" sort="number"><column>number</column><column>squared</column>
  </table></result>
</benchmark></jube>
""")
    Path("job.sh").write_text("#!/bin/sh\n#SBATCH --ntasks=1 --time=2 --output=job.out --error=job.err\n"
                              "srun sh -c 'echo square $((#NUMBER# * #NUMBER#))'\ntouch ready\n")
    jube = shutil.which("jube") or "jube"
    run(jube, "run", "study.xml", HOME=os.getcwd())
    until(lambda: len(list(Path("bench").glob("*/*/work/ready"))) == 3, "all jobs are ready")
    run(jube, "continue", "bench", HOME=os.getcwd())
    return run(jube, "result", "bench", "-a", HOME=os.getcwd()).splitlines()[-4:]


def dask() -> Any:
    """Functions on two workers, each a batch job."""
    from dask.distributed import Client
    from dask_jobqueue import SLURMCluster

    with SLURMCluster(cores=1, processes=1, memory="200MB", walltime="00:02:00", python=sys.executable,
                      scheduler_options={"dashboard_address": None}, worker_extra_args=["--no-dashboard"],
                      job_directives_skip=["--mem"], log_directory="logs", death_timeout=LIMIT) as cluster:
        cluster.scale(2)
        with Client(cluster, timeout=LIMIT) as client:
            client.wait_for_workers(2, timeout=LIMIT)
            return client.gather(client.map(square, [1, 2, 3]))


def executorlib() -> Any:
    """Functions by `srun` within a batch job."""
    Path("inside.py").write_text(
        "import json\nfrom executorlib import SlurmJobExecutor\n\n\ndef square(n):\n    return n * n\n\n\n"
        "if __name__ == '__main__':\n    with SlurmJobExecutor(max_cores=2) as executor:\n"
        "        futures = [executor.submit(square, n) for n in (1, 2, 3)]\n"
        "        json.dump([future.result(timeout=150) for future in futures], open('results', 'w'))\n")
    Path("job.sh").write_text(f"#!/bin/sh\n#SBATCH --ntasks=2 --time=2 --output=job.out\nexec {sys.executable} inside.py\n")
    run("sbatch", "--wait", "job.sh", check=False)
    if not Path("results").exists():
        raise SystemExit(Path("job.out").read_text())
    return json.loads(Path("results").read_text())


def aiida() -> Any:
    """AiiDA's scheduler plug-in with its local transport: submit, look, kill."""
    from aiida.schedulers.datastructures import JobTemplate
    from aiida.schedulers.plugins.slurm import SlurmScheduler
    from aiida.transports.plugins.local import LocalTransport

    scheduler = SlurmScheduler()
    template = JobTemplate()
    template.job_name = "calc"
    template.job_resource = scheduler.create_job_resource(num_machines=1, num_mpiprocs_per_machine=2)
    template.max_wallclock_seconds = 120
    template.sched_output_path, template.sched_error_path, template.sched_join_files = "out", "err", False
    template.codes_info, template.codes_run_mode = [], None
    header = scheduler._get_submit_script_header(template)
    Path("run.sh").write_text(f"#!/bin/sh\n{header}\nuntil [ -e go ]; do sleep 0.1; done\necho $SLURM_NTASKS\n")

    def gone(job: str) -> bool:
        found = scheduler.get_jobs(jobs=[job], as_dict=True).get(job)
        return found is None or found.job_state.name == "DONE"

    with LocalTransport(use_login_shell=False) as transport:  # /etc/profile sets another PATH
        scheduler.set_transport(transport)
        job = scheduler.submit_job(os.getcwd(), "run.sh")
        name = os.environ.get("USER", "root")
        info = until(lambda: (found := scheduler.get_jobs(jobs=[job], as_dict=True).get(job))
                     and found.job_state.name == "RUNNING" and found, "it runs")
        killed = scheduler.submit_job(os.getcwd(), "run.sh")
        dead = scheduler.kill_job(killed)
        until(lambda: gone(killed), "it dies")  # before it may say anything: Slurm takes its time
        Path("go").touch()
        until(lambda: gone(job), "it ends")
    return {"title": info.title, "machines": info.num_machines, "cpus": info.num_mpiprocs,
            "limit": info.requested_wallclock_time_seconds, "mine": info.job_owner == name, "killed": dead,
            "out": Path("out").read_text()}


def aiida_engine() -> Any:
    """A calculation by AiiDA's engine, in a profile of its own, without a broker."""
    os.environ["AIIDA_PATH"] = os.getcwd()
    from aiida import engine, load_profile, orm
    from aiida.manage.configuration import create_profile, get_config

    create_profile(get_config(create=True), name="here", email="user@example.org", storage_backend="core.sqlite_dos",
                   storage_config={"filepath": str(Path("store").absolute())})
    load_profile("here")
    computer = orm.Computer("here", "localhost", transport_type="core.local", scheduler_type="core.slurm",
                            workdir=str(Path("work").absolute())).store()
    computer.set_minimum_job_poll_interval(0.5)
    computer.configure(use_login_shell=False)
    code = orm.InstalledCode(computer, "/bin/bash", label="bash", default_calc_job_plugin="core.arithmetic.add").store()
    builder = code.get_builder()
    builder.x, builder.y = orm.Int(1), orm.Int(2)
    builder.metadata.options.update(withmpi=False, max_wallclock_seconds=120,
                                    resources={"num_machines": 1, "num_mpiprocs_per_machine": 1})
    results, node = engine.run_get_node(builder)
    header, job, *_ = (line.split("|") for line in node.get_detailed_job_info()["stdout"].splitlines())
    return {"sum": results["sum"].value, "status": node.exit_status, "errors": node.get_scheduler_stderr(),
            "state": job[header.index("State")], "same": job[header.index("JobID")] == node.get_job_id()}


def clusterfutures() -> Any:
    """A map of functions, one of which fails."""
    import cfut

    with cfut.SlurmExecutor(additional_setup_lines=["#SBATCH -n 1 -t 5"]) as executor:
        found: list[Any] = []
        for future in [executor.submit(square, number) for number in (1, 2, 13)]:
            try:
                found.append(future.result(LIMIT))
            except cfut.RemoteException as error:
                found.append("13" in str(error))
    return found


def simple_slurm() -> Any:
    """An array, a job that waits for it, one that fails, and one that is cancelled while it runs."""
    from simple_slurm import Slurm

    array = Slurm(array=range(2), ntasks=1, output="array.%a", time="5").sbatch("echo task $SLURM_ARRAY_TASK_ID", verbose=False)
    after = Slurm(dependency={"afterok": array}, ntasks=1, output="after", time="5").sbatch("cat array.*", verbose=False)
    failed = Slurm(ntasks=1, output="/dev/null", time="5").sbatch("exit 3", verbose=False)
    runs = Slurm(ntasks=1, output="/dev/null", time="5").sbatch("sleep 600", verbose=False)
    until(lambda: run("squeue", "-h", "-j", runs, "-o", "%T") == "RUNNING\n", "it runs")
    Slurm().scancel.cancel_job(runs)

    def state(job: int) -> str:
        return run("sacct", "-nXP", "-j", job, "-o", "state").partition("\n")[0].split(" ")[0]
    until(lambda: all(state(job) not in ("", "PENDING", "RUNNING", "COMPLETING") for job in (after, failed, runs)), "all end")
    return [Path("after").read_text(), *map(state, (after, failed, runs))]


def gridtk() -> Any:
    """An array, a job behind it, one that fails, one that is stopped while it runs; what gridtk lists, and its report."""
    Path("task.sh").write_text("#!/bin/sh\necho task $SLURM_ARRAY_TASK_ID\n")
    Path("fails.sh").write_text("#!/bin/sh\necho wrong >&2\nexit 3\n")
    Path("runs.sh").write_text("#!/bin/sh\n: >begun\nsleep 600\n")
    for words in (["-a", "0-1", "task.sh"], ["-d", "afterok:1", "task.sh"], ["fails.sh"], ["runs.sh"]):
        run(BIN / "gridtk", "submit", *words)
    until(lambda: Path("begun").exists(), "it runs")
    run(BIN / "gridtk", "stop", "-j", 4)
    run(BIN / "gridtk", "wait", "-j", "1-4", "--interval", "0.2", check=False)
    states = [line.split()[3:5] for line in run(BIN / "gridtk", "list").splitlines()[2:]]
    return {"states": states, "report": "wrong" in run(BIN / "gridtk", "report", "-j", 3)}


def slurmpy() -> Any:
    """A job that fails and is tried again, and one that waits for the first try's success."""
    from slurmpy import Slurm

    job = Slurm("relax", {"ntasks": 1, "time": "00:05:00"}, date_in_name=False)
    once = job.run("[ -e again ] || { touch again; exit 3; }; echo second >second", name_addition="", tries=2)
    first = job.run("echo first >first", name_addition="first")
    job.run("cat first >after", name_addition="after", depends_on=[first])
    until(lambda: all(Path(name).exists() and Path(name).read_text() for name in ("second", "after")), "all have ended")
    return [Path("second").read_text(), Path("after").read_text(),
            run("sacct", "-nXP", "-j", once, "-o", "state").strip(), len(list(Path("logs").glob("relax*.out")))]


SIGNAC = """
from flow import FlowProject

class Project(FlowProject):
    pass

@Project.post.isfile("squared")
@Project.operation(cmd=True, directives={"walltime": 0.1})
def square(job):
    return f"test {job.sp.n} != 13 && echo $(({job.sp.n} * {job.sp.n})) >{job.fn('squared')}"

@Project.pre.after(square)
@Project.post.isfile("more")
@Project.operation(directives={"walltime": 0.1})
def more(job):
    with open(job.fn("more"), "w") as file:
        print(int(open(job.fn("squared")).read()) + 1, file=file)

if __name__ == "__main__":
    Project().main()
"""


def signac() -> Any:
    """Two operations on three jobs, the first ones in bundles; one fails."""
    import signac

    Path("project.py").write_text(SIGNAC)
    project = signac.init_project(os.getcwd())
    jobs = [project.open_job({"n": number}).init() for number in (2, 3, 13)]

    def submit(*words: str) -> None:
        run(sys.executable, "project.py", "submit", *words)
        until(lambda: not run("squeue", "-h", "-u", os.environ["USER"], "-n", names(), "-o", "%j"), "all have ended")

    def names() -> str:
        return ",".join({line for line in run("squeue", "-h", "-o", "%100j").split() if "project" in line.lower()
                         or line.startswith(("square", "more"))}) or "none"
    submit("-o", "square", "--bundle", "2", "--parallel")
    submit("-o", "more")
    return [Path(job.fn("more")).read_text() if job.isfile("more") else "" for job in jobs]


def gwf() -> Any:
    """A chain of targets, one that fails with one behind it, and one that is cancelled while it runs."""
    Path("workflow.py").write_text(f"""
from gwf import Workflow
flow = Workflow(defaults=dict(cores=1, memory="20mb", walltime="00:05:00", queue={partition()!r}))
flow.target("One", inputs=[], outputs=["one"]) << "echo 1 >one"
flow.target("Two", inputs=["one"], outputs=["two"]) << "cat one one >two"
flow.target("Fails", inputs=[], outputs=["fails"]) << "echo wrong >&2; exit 3"
flow.target("Never", inputs=["fails"], outputs=["never"]) << "touch never"
flow.target("Runs", inputs=[], outputs=["runs"]) << "touch begun; sleep 600"
gwf = flow
""")
    Path(".gwfconf.json").write_text('{"check_updates": false}')  # that would ask a server

    def gwf(*words: str) -> str:
        return run(BIN / "gwf", "-b", "slurm", "--no-color", *words)
    gwf("run")
    until(lambda: Path("begun").exists(), "it runs")
    gwf("cancel", "-f", "Runs")
    until(lambda: not {"running", "submitted"} & set(gwf("status").split()) and Path("two").exists(), "all have ended")
    return [Path("two").read_text(), gwf("logs", "-e", "Fails"), [line.split()[0:2] for line in gwf("status").splitlines()],
            Path("never").exists()]


def maestro() -> Any:
    """Two studies: a step for each of two parameters, and one behind both; and the same with steps that fail."""
    studies = {}
    for name, code in (("good", 0), ("bad", 3)):
        Path(f"{name}.yaml").write_text(f"""
description: {{name: {name}, description: squares}}
batch: {{type: slurm, host: here, bank: none, queue: {partition()}}}
study:
  - name: square
    description: one
    run: {{cmd: "echo $(($(N) * $(N))) >squared; exit {code}", nodes: 1, procs: 1, walltime: "00:05:00"}}
  - name: total
    description: all
    run: {{cmd: "cat $(square.workspace)/*/squared >total", depends: [square_*], nodes: 1, procs: 1, walltime: "00:05:00"}}
global.parameters:
  N: {{values: [2, 3], label: N.%%}}
""")
        studies[name] = subprocess.Popen([BIN / "maestro", "run", "-y", "-fg", "-s", "1", "-o", name, f"{name}.yaml"])
    return {name: [study.wait(LIMIT), [path.read_text() for path in Path(name).glob("total/total")]]
            for name, study in studies.items()}


def myqueue() -> Any:
    """A task, one behind it, one that fails, and one that is removed while it runs."""
    Path(".myqueue").mkdir()
    Path(".myqueue/config.py").write_text(
        f"config = {{'scheduler': 'slurm', 'use_mpi': False, 'nodes': [({partition()!r}, {{'cores': 2, 'memory': '1G'}})]}}\n")
    # It forgets what a job says that ends before `mq submit` has written down its number, and waits for it for ever.
    known = "until [ -e submitted ]; do sleep 0.05; done; "
    for name, text in (("one", known + "echo 1 >one.out"), ("two", "cat one.out one.out >two.out"),
                       ("fails", known + "exit 3"), ("runs", ": >begun; sleep 600")):
        Path(f"{name}.sh").write_text(f"#!/bin/sh\n{text}\n")
        Path(f"{name}.sh").chmod(0o755)

    def mq(*words: str) -> str:
        return run(BIN / "mq", *words)
    for name, more in (("one", []), ("two", ["-d", "one.sh"]), ("fails", []), ("runs", [])):
        mq("submit", f"./{name}.sh", "-R", "1:5m", *more)
    Path("submitted").touch()
    until(lambda: Path("begun").exists(), "it runs")
    mq("remove", "-s", "qr", "-n", "runs.sh")

    def states() -> list[list[str]]:
        return sorted(line.split() for line in mq("list", "-c", "ns", "-s", "qhrdFCMTa").splitlines()[2:-2])
    until(lambda: not {"queued", "running"} & {state for *_, state in states()}, "all have ended")
    mq("daemon", "stop")
    return [Path("two.out").read_text(), states()]


def hydra() -> Any:
    """A sweep of four jobs, one of which fails."""
    Path("app.py").write_text("""
import hydra

@hydra.main(version_base=None, config_path=None)
def app(config):
    if config.n == 13:
        raise ValueError("unlucky")
    with open(f"../../squared.{config.n}", "w") as file:
        print(config.n ** 2, file=file)

app()
""")
    done = subprocess.run([sys.executable, "app.py", "-m", "hydra/launcher=submitit_slurm", "+n=1,2,3,13",
                           "hydra.launcher.timeout_min=5", "hydra.job.chdir=true", "hydra.sweep.dir=sweep"],
                          stderr=subprocess.PIPE, text=True, check=False)
    return [sorted(path.read_text() for path in Path(".").glob("squared.*")), done.returncode, "unlucky" in done.stderr]


CLIENTS: dict[str, Callable[[], Any]] = {
    "submitit": submitit, "pysqa": pysqa, "psij": psij, "qtoolkit": qtoolkit,
    "reframe-squeue": lambda: reframe("squeue"), "reframe-slurm": lambda: reframe("slurm"), "snakemake": snakemake,
    "parsl": parsl, "jube": jube, "dask": dask, "executorlib": executorlib, "aiida": aiida,
    "aiida-engine": aiida_engine, "clusterfutures": clusterfutures, "simple_slurm": simple_slurm,
    "gridtk": gridtk, "slurmpy": slurmpy, "signac": signac, "gwf": gwf, "maestro": maestro,
    "myqueue": myqueue, "hydra": hydra}


def all_of(names: list[str], together: int) -> None:
    """Run each client in a process and a directory of its own; each wait of a client has a limit of its own."""
    def one(name: str) -> None:
        Path(name).mkdir()
        with open(f"{name}.log", "w") as log:
            subprocess.run([sys.executable, __file__, "--", name], cwd=name, stdin=subprocess.DEVNULL, stdout=log,
                           stderr=subprocess.STDOUT, timeout=4 * LIMIT, check=False)
    with ThreadPoolExecutor(together) as pool:
        for _ in pool.map(one, names):
            pass


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(" ".join(CLIENTS))
    elif sys.argv[1] == "--":
        os.environ["PATH"] = f"{BIN}:{os.environ['PATH']}"  # as in an environment that is active
        start = time.monotonic()
        found = CLIENTS[sys.argv[2]]()
        Path("result").write_text(json.dumps([found, time.monotonic() - start]))
    else:
        all_of(sys.argv[2:], int(sys.argv[1]))
