"""The command lines of clients that do not run in tests/clients, as their sources have them, and what each must read in
the answer. Where a client calls with words that look wrong, so it does."""

from __future__ import annotations

import re

import pytest

from support.counters import Counter, a_job, run
from vrm.model import JobState

SCRIPTS: dict[str, bytes] = {
    "Nextflow": b"#!/bin/bash\n#SBATCH -J nf-hello_(1)\n#SBATCH -o /work/.command.log\n#SBATCH --no-requeue\n"
                b"#SBATCH --signal B:USR2@30\n#SBATCH -c 2\n#SBATCH -t 00:10:00\n#SBATCH --mem 100M\n# NEXTFLOW TASK: hello\n",
    "FireWorks": b"#!/bin/bash -l\n\n#SBATCH --nodes=1\n#SBATCH --ntasks=2\n#SBATCH --ntasks-per-node=2\n"
                 b"#SBATCH --time=01:00:00\n#SBATCH --account=mine\n#SBATCH --job-name=FW_job\n#SBATCH --output=FW_job-%j.out\n"
                 b"#SBATCH --error=FW_job-%j.error\n#SBATCH --gres=NONE\n#SBATCH --wckey=x\n\ncd /work\n",
    "Maestro": b"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --partition=pbatch\n#SBATCH --account=guests\n"
               b"#SBATCH --time=00:10:00\n#SBATCH --job-name=\"run-step\"\n#SBATCH --output=\"run-step.out\"\n"
               b"#SBATCH --error=\"run-step.err\"\n#SBATCH --comment \"a step\"\nsrun -n 2 -N 1 -c 1 ./step\n",
    "Autosubmit": b"#!/usr/bin/env bash\n#SBATCH --qos=debug\n#SBATCH -A bsc\n#SBATCH --cpus-per-task=1\n#SBATCH -n 2\n"
                  b"#SBATCH -t 00:10:00\n#SBATCH -J a000_INI\n#SBATCH --output=/work/a000_INI.out\n"
                  b"#SBATCH --error=/work/a000_INI.err\n",
    "Cylc": b"#!/bin/bash -l\n#SBATCH --job-name=task.1.run1\n#SBATCH --output=/work/job.out\n#SBATCH --error=/work/job.err\n"
            b"#SBATCH --time=10:00\n#SBATCH --export=NONE\n#SBATCH --signal=TERM@60\n",
    "signac-flow": b"#!/bin/bash\n#SBATCH --job-name=\"Project/agg/one/0001\"\n#SBATCH --partition=standard\n"
                   b"#SBATCH -t 01:00:00\n#SBATCH --ntasks=2\n#SBATCH --mem-per-cpu=10M\n",
}

SUBMITTED = r"Submitted batch job 3\n"

CALLS = [
    ("Nextflow", ["sbatch", ".command.run"], SUBMITTED),
    ("Nextflow", ["squeue", "--noheader", "-o", "%i %t", "-t", "all", "-u", "ann"], r"1 R\n2 CD\n"),
    ("Nextflow", ["scancel", "1"], r""),
    ("FireWorks", ["sbatch", "FW_submit.script"], SUBMITTED),
    ("FireWorks", ["squeue", '-o "%u"', "-u", "ann", "-h"], r'.*ann.*\n'),
    ("Maestro", ["sbatch", "-D", "/work", "step.sh"], SUBMITTED),
    ("Maestro", ["squeue", "-u", "ann", "-t", "all", "--format=%.18i %.8j %.8u %.2t"],
     r" +JOBID +NAME +USER ST\n +1 +solve +ann +R\n +2 +solve +ann CD\n"),
    ("Maestro", ["sacct", "-u", "ann", "--jobs=2", "--format=jobid,jobname,state,exitcode"],
     r"\s*JobID +JobName +State +ExitCode \n[- ]+\n2 +solve +COMPLETED +0:0 \n(2.batch .*\n)?"),
    ("Merlin", ["sbatch", "--help"], r"Usage: sbatch[\s\S]+"),
    ("Ramble", ["squeue", "-h", "-o", "%t", "-j", "1"], r"R\n"),
    ("Ramble", ["sacct", "-o", "state", "-X", "-n", "-j", "2"], r" COMPLETED \n"),
    ("Ramble", ["sacct", "-n", "-X", "-j", "2", "-o", "nodelist%4096,start,end,elapsed,exitcode"], r" +n1 +\S+ +\S+ +\S+ +0:0 \n"),
    ("Ramble", ["sinfo", "-h"], r"vrm\* +up [\s\S]*"),
    ("Ramble", ["scontrol", "show", "hostnames", "n[1-2],m3"], r"n1\nn2\nm3\n"),
    ("Toil", ["sbatch", "-J", "toil_job_1_x", "--signal=B:INT@30", "--export=ALL,A=b", "--time=0:600", "--mem=20",
              "--cpus-per-task=2", "--wrap=exec true"], SUBMITTED),
    ("Toil", ["scontrol", "show", "job", "1"], r"JobId=1 JobName=solve\n[\s\S]*JobState=RUNNING[\s\S]*ExitCode=0:0[\s\S]*"),
    ("Toil", ["sacct", "-n", "-j", "1,2", "-P", "--format", "JobIDRaw,State,ExitCode", "-S", "1970-01-01"],
     r"1\|RUNNING\|0:0\n(1.batch.*\n)?2\|COMPLETED\|0:0\n(2.batch.*\n)?"),
    ("Toil", ["sinfo", "-a", "-o", "%P %G %l %p %c %m"], r"PARTITION GRES TIMELIMIT \S+ CPUS MEMORY\nvrm\* \S+ \S+ \S+ \S+ \S+\n[\s\S]*"),
    ("Autosubmit", ["sbatch", "--no-requeue", "-D", "/work", "a000_INI.cmd"], SUBMITTED),
    ("Autosubmit", ["sacct", "-n", "-X", "--jobs", "1,2", "-o", "jobid,State"], r"1 +RUNNING \n2 +COMPLETED \n"),
    ("Autosubmit", ["squeue", "-h", "-o", "%j:%A", "-n", "solve"], r"solve:1\n"),
    ("Cylc", ["sbatch", "job"], SUBMITTED),
    ("Cylc", ["squeue", "-h", "-j", "1,2"], r" +1 +vrm +solve +ann +R .*\n"),
    ("signac-flow", ["sbatch", "-W", "-d", "afterok:1", "script.sh"], None),
    ("signac-flow", ["squeue", "-u", "ann", "-h", "--format=%2t%100j"], r"R solve {95}\n"),
    ("MyQueue", ["squeue", "--user", "ann"], r" +JOBID PARTITION +NAME +USER ST +TIME +NODES NODELIST\(REASON\)\n +1 .*\n"),
    ("MyQueue", ["scontrol", "hold", "1"], r""),
    ("MyQueue", ["scontrol", "release", "1"], r""),
    ("MyQueue", ["sinfo", "--noheader", "-O", "CPUs,Memory,Partition"], r"8 +\S+ +vrm\*? *\n[\s\S]*"),
    ("RADICAL.SAGA", ["scontrol", "--version"], r"slurm \d+\.\d+\.\d+\n"),
    ("RADICAL.SAGA", ["scontrol", "show", "nodes"], r"[\s\S]*CPUTot=8[\s\S]*"),
    ("Snakemake", ["sacct", "-nu", "ann", "-o", "Account%256", "|", "tail", "-1"], None),
]
"""Client, words, and the answer as a pattern; None: any answer at all, as long as no name is in it."""


@pytest.mark.parametrize("number", range(len(CALLS)), ids=lambda number: f"{CALLS[number][0]} {CALLS[number][1][0]} {number}")
def test_a_client_reads_what_it_expects(number: int) -> None:
    client, words, wanted = CALLS[number]
    handler = Counter(a_job(1, start=1_699_999_500.0, nodes=("n1",), cores=(2,)),
                      a_job(2, JobState.COMPLETED, start=1_699_999_500.0, end=1_699_999_900.0, nodes=("n1",), cores=(2,), code=0))
    try:
        answer = run(handler, *words, script=SCRIPTS.get(client, b"#!/bin/sh\ntrue\n"))
    except AssertionError as error:  # it waits, with -W
        assert wanted is None and "EndAnswer" in str(error), error
        assert handler.asked
        return
    if wanted is None:
        assert "solve" not in answer.out
        return
    assert (answer.code, answer.err) == (0, "") and re.fullmatch(wanted, answer.out), answer


def test_the_format_of_balsam_comes_by_a_variable() -> None:
    handler = Counter(a_job(1))
    answer = run(handler, "squeue", "-u", "ann", env={"SQUEUE_FORMAT2": "jobid,statecompact,username,timelimit,numnodes,name"})
    head, line = answer.out.splitlines()
    assert head.split() == ["JOBID", "ST", "USER", "TIME_LIMIT", "NODES", "NAME"]
    assert line.split()[:3] == ["1", "R", "ann"]


def test_what_scripts_ask_for() -> None:
    asked: dict[str, list[int]] = {}
    for client, script in SCRIPTS.items():
        handler = Counter()
        assert run(handler, "sbatch", "x", script=script).code == 0, client
        values = handler.asked[0].values
        asked[client] = [values["procs"], values["cores"], int(values["walltime"])]
    assert asked == {"Nextflow": [1, 2, 600], "FireWorks": [2, 1, 3600], "Maestro": [1, 1, 600], "Autosubmit": [2, 1, 600],
                     "Cylc": [1, 1, 600], "signac-flow": [2, 1, 3600]}
