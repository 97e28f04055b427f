"""What several packages need and none owns: files, statistics, tables, environment."""
