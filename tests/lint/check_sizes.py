"""Holds files small: sources up to 600 lines, READMEs up to 200. Usage: check_sizes.py ROOT"""
from source_tree import files, lines, main

LIMITS = [((".h", ".cpp", ".py", ".cmake", "CMakeLists.txt"), 600, "split it by what its parts are for"),
          (("README.md",), 200, "keep what a newcomer needs and move the rest to docs/")]


def check(root):
    for suffixes, limit, advice in LIMITS:
        for path in files(root, suffixes):
            count = len(lines(root, path))
            if count > limit:
                yield f"{path}:{limit + 1}: {count} lines, at most {limit} are allowed: {advice}"


if __name__ == "__main__":
    main(check)
