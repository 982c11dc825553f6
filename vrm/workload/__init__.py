"""Where jobs come from: growing queue files, recorded ones, generators, traces."""
