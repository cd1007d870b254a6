package segment

func child(job string) int { return 0 }
