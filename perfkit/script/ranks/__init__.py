"""A run of several processes (ranks): what each leaves in a folder of the run, and one report."""
