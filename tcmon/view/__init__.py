"""A run as one HTML file that needs no network: charts, the calls of recorded steps, findings, facts."""
