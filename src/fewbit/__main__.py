# SPDX-License-Identifier: Apache-2.0
"""`python -m fewbit` is `fewbit`."""

from fewbit.cli import main

if __name__ == "__main__":
    main()
