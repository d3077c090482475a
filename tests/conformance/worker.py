"""Runs cases that it receives, one line of JSON each way: {"case": [family, subject, dtype]} →
{"status", "message", "seconds"}.

Its own process, so that a crash or a hang is one case's failure and not the run's.
"""

import gc
import json
import os
import sys
import time
import traceback

RECYCLE = 200  # cases between two collections of garbage


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what operators print is no answer
    import neuron_device  # noqa: F401, I001  # loads the device before anything else

    import case
    from case import Case, Skip

    case.load_families()
    answers.write('{"ready": true}\n')
    for number, line in enumerate(sys.stdin):
        begin = time.monotonic()
        try:
            case.run_case(Case(*json.loads(line)["case"]))
            status, message = "passed", ""
        except Skip as reason:
            status, message = "skipped", str(reason)
        except Exception as error:  # any exception is the case's failure
            status, message = "failed", explain(error)
        answers.write(
            json.dumps(
                {
                    "status": status,
                    "message": message,
                    "seconds": round(time.monotonic() - begin, 3),
                }
            )
            + "\n"
        )
        if number % RECYCLE == 0:
            gc.collect()


def explain(error):
    """One paragraph: the error without C++ stacks, and the last line of the tests that it
    passed."""
    text = str(error).split("\nException raised from")[0].strip()
    place = traceback.extract_tb(error.__traceback__)
    ours = [
        f"{os.path.basename(f.filename)}:{f.lineno}" for f in place if "conformance" in f.filename
    ]
    return f"{type(error).__name__}: {text[:600]}" + (
        f" ({ours[-1]})" if ours and type(error).__name__ != "Mismatch" else ""
    )


if __name__ == "__main__":
    main()
