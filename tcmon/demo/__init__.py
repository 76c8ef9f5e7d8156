"""The training program that `tcmon demo` runs and watches: an ordinary script that knows nothing of tcmon."""
