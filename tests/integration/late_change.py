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
  FILE* file = strstr(to, "/model/") ? fopen(getenv("CHANGED_FILE"), "r+") : NULL;
  if (file) {
    fseek(file, 0, SEEK_END);
    long middle = ftell(file) / 2;
    fseek(file, middle, SEEK_SET);
    int byte = fgetc(file);
    fseek(file, middle, SEEK_SET);
    fputc(byte ^ 1, file);
    fclose(file);
  }
  return real(from, to);
}
"""


def environment(folder, changed):
    """With it, a bit in the middle of `changed` is another one then."""
    source, library = folder / "late.c", folder / "late.so"
    source.write_text(PROGRAM)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "CHANGED_FILE": str(changed)}
