package shield

func (b *Backend) Dump() string { return b.clients.Core.Dump() }
