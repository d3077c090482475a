"""A file that changes while the program works: when it has completed a file of weights."""

import subprocess

import torch

PROGRAM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int rename(const char* from, const char* to) {
  int (*real)(const char*, const char*) = dlsym(RTLD_NEXT, "rename");
  FILE* source = strstr(to, "/model/") ? fopen(getenv("OTHER_FILE"), "r") : NULL;
  FILE* file = source ? fopen(getenv("CHANGED_FILE"), "r+") : NULL;
  if (file) {
    for (int byte; (byte = fgetc(source)) != EOF;) fputc(byte, file);
    fclose(file);
    fclose(source);
  }
  return real(from, to);
}
"""


def environment(folder, changed, weight):
    """With it, one value of a weight in `changed` is another one then, in a whole file."""
    weights = torch.load(changed, weights_only=False)
    (name,) = [name for name in weights if name.endswith(weight)]
    weights[name][1, 1] += 1
    other = folder / "other" / changed.name  # the archive has the file's name
    other.parent.mkdir()
    torch.save(weights, other)
    source, library = folder / "late.c", folder / "late.so"
    source.write_text(PROGRAM)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "CHANGED_FILE": str(changed), "OTHER_FILE": str(other)}
