"""What was measured of programs: files of heatmaps and of run times, and how fast jobs run next to others."""
