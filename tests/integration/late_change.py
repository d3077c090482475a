"""A file that changes while the program works: when it has completed a file of weights."""

import subprocess

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


def environment(folder, changed, other):
    """With it, `changed` has the bytes of `other`, a file of the same length, then."""
    source, library = folder / "late.c", folder / "late.so"
    source.write_text(PROGRAM)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "CHANGED_FILE": str(changed), "OTHER_FILE": str(other)}
