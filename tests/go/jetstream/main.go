// Command jetstream does what JetStream applications in Go do, with both of the client's interfaces, and prints what it
// was told, by step, as JSON: go run . URL. It needs a server without streams.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const patience = 20 * time.Second

var notes [][]any

func note(step string, told ...any) { notes = append(notes, append([]any{step}, told...)) }

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatalf("after %v: %v", notes[max(0, len(notes)-3):], err)
	}
	return value
}

func check(err error) { must(0, err) }

// told is the code of an error of the server.
func told(err error) any {
	var known *jetstream.APIError
	if errors.As(err, &known) {
		return known.ErrorCode
	}
	return fmt.Sprint(err)
}

func shown(message jetstream.Msg) []any {
	place := must(message.Metadata())
	return []any{message.Subject(), string(message.Data()), place.Sequence.Stream, place.NumDelivered, place.NumPending}
}

func published(ctx context.Context, js jetstream.JetStream, subject string, count, subjects int) {
	for number := range count {
		must(js.Publish(ctx, fmt.Sprintf("%s.%d", subject, number%subjects), fmt.Appendf(nil, "%d", number)))
	}
}

func streams(ctx context.Context, js jetstream.JetStream) {
	config := jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, MaxMsgsPerSubject: 4}
	config.AllowDirect = true
	stream := must(js.CreateStream(ctx, config))
	published(ctx, js, "orders", 6, 2)
	for range 2 {
		ack := must(js.Publish(ctx, "orders.0", []byte("x"), jetstream.WithMsgID("one")))
		note("published", ack.Stream, ack.Sequence, ack.Duplicate)
	}
	_, err := js.Publish(ctx, "orders.0", nil, jetstream.WithExpectLastSequence(2))
	note("wrong last", told(err))
	_, err = js.Publish(ctx, "other", nil)
	note("no stream", fmt.Sprint(err))
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "overlap", Subjects: []string{"orders.1"}})
	note("overlap", told(err))
	futures := []jetstream.PubAckFuture{}
	for number := range 100 {
		futures = append(futures, must(js.PublishAsync("orders.many", fmt.Appendf(nil, "%d", number))))
	}
	<-js.PublishAsyncComplete()
	note("many", (<-futures[0].Ok()).Sequence, (<-futures[99].Ok()).Sequence)
	names := []string{}
	for name := range js.StreamNames(ctx).Name() {
		names = append(names, name)
	}
	for info := range js.ListStreams(ctx).Info() {
		names = append(names, info.Config.Name)
	}
	note("names", names)
	state := must(stream.Info(ctx, jetstream.WithSubjectFilter(">"), jetstream.WithDeletedDetails(true))).State
	note("info", state.Msgs, state.Bytes, state.FirstSeq, state.LastSeq, state.NumDeleted, state.Subjects)
	one := must(stream.GetMsg(ctx, 2))
	last := must(stream.GetLastMsgForSubject(ctx, "orders.1"))
	note("got", one.Subject, string(one.Data), last.Sequence)
	_, err = stream.GetMsg(ctx, 1000)
	note("not there", told(err))
	check(stream.DeleteMsg(ctx, 3))
	check(stream.Purge(ctx, jetstream.WithPurgeSubject("orders.1"), jetstream.WithPurgeKeep(1)))
	config.MaxMsgs = 3
	note("updated", must(js.UpdateStream(ctx, config)).CachedInfo().State.Msgs)
	account := must(js.AccountInfo(ctx))
	note("account", account.Streams, account.Consumers)
	check(js.DeleteStream(ctx, "orders"))
	_, err = js.Stream(ctx, "orders")
	note("deleted", told(err))
}

func pulling(ctx context.Context, js jetstream.JetStream) {
	config := jetstream.StreamConfig{Name: "jobs", Subjects: []string{"jobs.*"}, Retention: jetstream.WorkQueuePolicy}
	stream := must(js.CreateStream(ctx, config))
	published(ctx, js, "jobs", 10, 2)
	worker := must(stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{Durable: "worker", MaxDeliver: 3}))
	fetched := [][]any{}
	for message := range must(worker.Fetch(4, jetstream.FetchMaxWait(patience))).Messages() {
		fetched = append(fetched, shown(message))
		switch len(fetched) {
		case 1:
			check(message.Nak())
		case 2:
			check(message.TermWithReason("not needed"))
		default:
			check(message.DoubleAck(ctx))
		}
	}
	again := must(worker.Next(jetstream.FetchMaxWait(patience)))
	note("fetched", fetched, shown(again))
	check(again.Ack())
	consumed := [][]any{}
	iterator := must(worker.Messages(jetstream.PullMaxMessages(3)))
	for len(consumed) < 6 {
		message := must(iterator.Next())
		consumed = append(consumed, shown(message))
		check(message.InProgress())
		check(message.DoubleAck(ctx))
	}
	iterator.Stop()
	note("consumed", consumed)
	none := must(worker.FetchNoWait(5))
	for range none.Messages() {
		note("more than there is")
	}
	info := must(worker.Info(ctx))
	note("info", info.NumPending, info.NumAckPending, info.Delivered.Stream, info.AckFloor.Stream)
	note("left", must(stream.Info(ctx)).State.Msgs, told(none.Error()))
	note("paused", must(stream.PauseConsumer(ctx, "worker", time.Now().Add(time.Minute))).Paused)
	note("resumed", must(stream.ResumeConsumer(ctx, "worker")).Paused)
	_, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "worker", MaxDeliver: 4})
	note("exists", told(err))
	check(stream.DeleteConsumer(ctx, "worker"))
}

func ordered(ctx context.Context, js jetstream.JetStream) {
	stream := must(js.CreateStream(ctx, jetstream.StreamConfig{Name: "log", Subjects: []string{"log.>"}}))
	published(ctx, js, "log", 300, 3)
	config := jetstream.OrderedConsumerConfig{FilterSubjects: []string{"log.0", "log.2"}, OptStartSeq: 10}
	config.DeliverPolicy = jetstream.DeliverByStartSequencePolicy
	consumer := must(stream.OrderedConsumer(ctx, config))
	seen := []uint64{}
	all := make(chan bool)
	consuming := must(consumer.Consume(func(message jetstream.Msg) {
		place := must(message.Metadata())
		seen = append(seen, place.Sequence.Stream)
		if place.NumPending == 0 {
			close(all)
		}
	}))
	<-all
	consuming.Stop()
	note("in order", len(seen), seen[0], seen[len(seen)-1], slices.IsSorted(seen))
}

func pushed(ctx context.Context, client *nats.Conn, js jetstream.JetStream) {
	stream := must(js.CreateStream(ctx, jetstream.StreamConfig{Name: "news", Subjects: []string{"news.*"}}))
	published(ctx, js, "news", 5, 5)
	config := jetstream.ConsumerConfig{Durable: "reader", DeliverSubject: "to.reader", DeliverGroup: "readers"}
	config.AckPolicy, config.IdleHeartbeat = jetstream.AckExplicitPolicy, 5*time.Second
	reader := must(stream.CreateOrUpdatePushConsumer(ctx, config))
	got := make(chan []any, 5)
	consuming := must(reader.Consume(func(message jetstream.Msg) {
		got <- shown(message)
		check(message.Ack())
	}))
	for range 5 {
		note("pushed", <-got)
	}
	consuming.Stop()
	older := must(client.JetStream(nats.MaxWait(patience)))
	subscription := must(older.SubscribeSync("news.3", nats.OrderedConsumer()))
	note("older, ordered", string(must(subscription.NextMsg(patience)).Data))
	pulling := must(older.PullSubscribe("news.*", "older"))
	for _, message := range must(pulling.Fetch(2, nats.MaxWait(patience))) {
		note("older, pulled", message.Subject)
		check(message.AckSync())
	}
	check(subscription.Unsubscribe())
}

func values(ctx context.Context, js jetstream.JetStream) {
	settings := jetstream.KeyValueConfig{Bucket: "settings", History: 3, LimitMarkerTTL: time.Minute}
	kv := must(js.CreateKeyValue(ctx, settings))
	watch := must(kv.WatchAll(ctx))
	note("put", must(kv.Put(ctx, "a.b", []byte("1"))), must(kv.PutString(ctx, "a.b", "2")))
	note("created", must(kv.Create(ctx, "c", []byte("3"))))
	_, err := kv.Create(ctx, "c", []byte("4"))
	note("created twice", errors.Is(err, jetstream.ErrKeyExists))
	note("updated", must(kv.Update(ctx, "c", []byte("5"), 3)))
	_, err = kv.Update(ctx, "c", []byte("6"), 3)
	note("updated twice", told(err))
	note("for a while", must(kv.Create(ctx, "d", []byte("7"), jetstream.KeyTTL(time.Hour))))
	entry := must(kv.Get(ctx, "a.b"))
	note("got", string(entry.Value()), entry.Revision(), entry.Operation().String())
	check(kv.Delete(ctx, "a.b"))
	_, err = kv.Get(ctx, "a.b")
	note("deleted", errors.Is(err, jetstream.ErrKeyNotFound))
	for _, each := range must(kv.History(ctx, "a.b")) {
		note("history", each.Operation().String(), string(each.Value()), each.Revision())
	}
	for number := 0; number < 6; {
		if update := <-watch.Updates(); update != nil {
			note("watched", update.Key(), update.Operation().String(), string(update.Value()), update.Revision())
			number++
		}
	}
	check(watch.Stop())
	note("keys", must(kv.Keys(ctx)))
	check(kv.Purge(ctx, "c"))
	status := must(kv.Status(ctx))
	note("status", status.Bucket(), status.History(), status.Values(), status.BackingStore(), status.LimitMarkerTTL())
	check(kv.PurgeDeletes(ctx, jetstream.DeleteMarkersOlderThan(-1)))
	note("compacted", must(kv.Status(ctx)).Values())
	check(js.DeleteKeyValue(ctx, "settings"))
}

func objects(ctx context.Context, js jetstream.JetStream) {
	store := must(js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: "files", Description: "of a test"}))
	watch := must(store.Watch(ctx))
	data := make([]byte, 300000)
	for at := range data {
		data[at] = byte(at % 251)
	}
	info := must(store.PutBytes(ctx, "large", data))
	note("put", info.Size, info.Chunks, info.Digest)
	small := must(store.PutString(ctx, "small", "x"))
	note("got", slices.Equal(must(store.GetBytes(ctx, "large")), data))
	must(store.AddLink(ctx, "link", small))
	note("link", must(store.GetString(ctx, "link")))
	check(store.Delete(ctx, "large"))
	for number := 0; number < 4; {
		if update := <-watch.Updates(); update != nil {
			note("watched", update.Name, update.Size, update.Chunks, update.Deleted)
			number++
		}
	}
	check(watch.Stop())
	for _, each := range must(store.List(ctx)) {
		note("listed", each.Name, each.Size)
	}
	check(store.UpdateMeta(ctx, "small", jetstream.ObjectMeta{Name: "renamed"}))
	note("renamed", must(store.GetString(ctx, "renamed")))
	check(store.Seal(ctx))
	note("sealed", must(store.Status(ctx)).Sealed())
	_, err := store.PutString(ctx, "more", "x")
	note("refused", told(err))
}

func main() {
	client := must(nats.Connect(os.Args[1]))
	js := must(jetstream.New(client))
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	streams(ctx, js)
	pulling(ctx, js)
	ordered(ctx, js)
	pushed(ctx, client, js)
	values(ctx, js)
	objects(ctx, js)
	client.Close()
	check(json.NewEncoder(os.Stdout).Encode(notes))
}
