"""Programs in new processes that are forked from one that has imported torch and nothing of ours:
importing torch takes longer than most of them run. A program ends as one of `python -c` would."""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
import traceback


@functools.cache
def parent():
    process = subprocess.Popen(
        [sys.executable, "-B", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.communicate)
    return process


def run_python(code, **environment):
    """As subprocess.run of `python -c code` with `environment` added."""
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as error:
        request = {"code": code, "environment": environment, "files": [out.name, error.name]}
        print(json.dumps(request), file=parent().stdin, flush=True)
        returncode = int(parent().stdout.readline())
        return subprocess.CompletedProcess(code, returncode, out.read(), error.read())


def become(request):
    """Runs the program in this process; its exit status."""
    os.environ.update(request["environment"])
    for descriptor, path in enumerate([os.devnull, *request["files"]]):
        os.dup2(os.open(path, os.O_RDWR), descriptor)
    try:
        exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        return end.code
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def serve():
    import torch  # noqa: F401

    for line in sys.stdin:
        if (child := os.fork()) == 0:
            sys.exit(become(json.loads(line)))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
