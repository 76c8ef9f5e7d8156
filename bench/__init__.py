"""What tcmon costs, measured."""
